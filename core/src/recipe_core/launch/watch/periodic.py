"""A thread that runs a job periodically, and at once on request. Imports no torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

_POLL_SECONDS = 0.1
"""Seconds between checks while waiting: another waiter may have consumed the same event."""


class PeriodicThread:
    """Runs ``job`` every ``interval`` seconds from :meth:`start` to :meth:`finish`, in a thread named ``name``.

    The job may block in a file system for any time: :meth:`wait_for` and :meth:`join` have time limits.
    """

    def __init__(self, name: str, job: Callable[[], None], interval: float) -> None:
        self._job, self._interval = job, interval
        self._requested = self._completed = 0
        self._last = False
        self._wake, self._progress = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self) -> int:
        """Request a run of the job now; return the request number for :meth:`wait_for`."""
        self._requested += 1
        self._wake.set()
        return self._requested

    def wait_for(self, number: int, seconds: float) -> bool:
        """Wait at most ``seconds``; True if a whole run of the job began and ended after request ``number``."""
        deadline = time.monotonic() + seconds
        while self._completed < number and (left := deadline - time.monotonic()) > 0:
            self._progress.wait(min(left, _POLL_SECONDS))
            self._progress.clear()
        return self._completed >= number

    def finish(self) -> None:
        """Request a last run of the job, after which the thread ends."""
        self._last = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait at most ``seconds`` for the thread to end."""
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            number, last = self._requested, self._last
            self._job()
            self._completed = number
            self._progress.set()
            if last:
                return
            self._wake.wait(self._interval)
            self._wake.clear()


def finish_all(threads: Sequence[PeriodicThread], seconds: float) -> None:
    """Have each thread run its job a last time, and wait at most ``seconds`` for all of them."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.finish()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def run_all_now(threads: Iterable[PeriodicThread], seconds: float) -> bool:
    """Have each thread run its job now; True if all runs ended within ``seconds``."""
    deadline = time.monotonic() + seconds
    requests = [(thread, thread.request()) for thread in threads]
    return all(thread.wait_for(number, max(0.0, deadline - time.monotonic())) for thread, number in requests)
