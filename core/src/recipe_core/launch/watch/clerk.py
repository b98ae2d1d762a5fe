"""A thread that does one thing again and again, and at once where it is asked to. Imports no torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence

_OFTEN = 0.1
"""Seconds after which one who waits looks again: another may have waited for the same news."""


class Clerk:
    """Does ``job`` every ``interval`` seconds from :meth:`start` to :meth:`finish`, in a thread named ``name``.

    The job may be stuck in a file system for as long as that likes: nobody waits for it longer than he says.
    """

    def __init__(self, name: str, job: Callable[[], None], interval: float) -> None:
        self._job, self._interval = job, interval
        self._asked = self._done = 0
        self._last = False
        self._wake, self._news = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self) -> int:
        """Have the job done now; return the number by which to wait for it."""
        self._asked += 1
        self._wake.set()
        return self._asked

    def did(self, number: int, seconds: float) -> bool:
        """True once the job was done, from begin to end, after it was asked for by ``number``; waits so long."""
        deadline = time.monotonic() + seconds
        while self._done < number and (left := deadline - time.monotonic()) > 0:
            self._news.wait(min(left, _OFTEN))
            self._news.clear()
        return self._done >= number

    def finish(self) -> None:
        """Have the job done a last time."""
        self._last = True
        self._wake.set()

    def join(self, seconds: float) -> None:
        """Wait at most so long for the last time."""
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            number, last = self._asked, self._last
            self._job()
            self._done = number
            self._news.set()
            if last:
                return
            self._wake.wait(self._interval)
            self._wake.clear()


def all_finished(clerks: Sequence[Clerk], seconds: float) -> None:
    """Have all ``clerks`` do their jobs a last time, and wait so long."""
    deadline = time.monotonic() + seconds
    for clerk in clerks:
        clerk.finish()
    for clerk in clerks:
        clerk.join(max(0.0, deadline - time.monotonic()))


def all_did(clerks: Iterable[Clerk], seconds: float) -> bool:
    """Have all ``clerks`` do their jobs now, and wait so long; True if all have."""
    deadline = time.monotonic() + seconds
    asked = [(clerk, clerk.ask()) for clerk in clerks]
    return all(clerk.did(number, max(0.0, deadline - time.monotonic())) for clerk, number in asked)
