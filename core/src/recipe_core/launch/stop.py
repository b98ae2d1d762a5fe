"""Signals that ask a run to stop: obeyed at once where there is nothing to save, else at the next good moment.

Imports next to nothing, so that the command can install a flag before its own imports.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from recipe_core.errors import ExitCode

# Ctrl-C; what a batch system sends before it kills; the terminal was closed; what batch systems are told to send some
# minutes earlier (Slurm's --signal). Looked up by name: not every platform has all of them.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
"""Signals that ask a run to stop."""
REPEATED: dict[int, float] = {signal.SIGINT: 0.5, signal.SIGTERM: 1.0}
"""Seconds after which a second one is meant as one: a launcher and a batch system may both send the first, and
``timeout`` sends it to a command and to its process group."""
_supervised = False
_RECORDING = 3.0
"""Seconds that writing down why a process ends at once may take."""


class StopFlag:
    """Within the block, a signal to stop is noted, or with ``at_once`` ends the process with exit code 75.

    ``signal`` is the name of the first one that came, or None; the training loop looks at it between steps and micro
    batches, together with the other ranks. A second Ctrl-C, or SIGTERM, after :data:`REPEATED` ends the process at
    once, with nothing saved; a rank of our supervisor leaves the second Ctrl-C to that. A signal that the process was
    told to ignore (nohup) stays ignored, and outside the main thread, where Python takes no handlers, the flag stays
    None. Leaving the block brings the earlier handlers back.

    Signals are read by a thread: the main one may be in a call of minutes, such as waiting for other ranks or a
    compilation, in which Python runs no handler.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.record: Callable[[str], None] = lambda name: None
        """Writes down that the signal of this name is about to end the process at once."""
        self._first: str | None = None
        self._at_once = at_once
        self._settled = False
        self._came: dict[int, float] = {}
        self._lock = threading.Lock()
        self._before: dict[int, Any] = {}
        self._pipe: tuple[int, int] | None = None
        self._wakeup = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, _left_to_the_thread)
        unblock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipe is None or self._thread is None:
            return
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._pipe[1])
        self._thread.join()  # it has read to the end
        os.close(self._pipe[0])
        self._pipe = None

    @property
    def signal(self) -> str | None:
        """Name of the first signal that came."""
        self._read()
        return self._first

    def defer(self) -> None:
        """From now on, note a signal instead of ending at once: there is something to save."""
        with self._lock:
            self._at_once = False

    def obey(self) -> None:
        """From now on, end at once: everything is saved. A signal that came meanwhile does so now."""
        with self._lock:
            self._at_once = True
            if self._first is not None:
                self._end_at_once(self._first)

    def settle(self) -> None:
        """From now on, ignore signals: the process is about to end, and its exit code is settled."""
        with self._lock:
            self._settled = True

    def _listen(self) -> None:
        assert self._pipe is not None
        while select.select([self._pipe[0]], [], []) and self._read():
            pass

    def _read(self) -> bool:
        """Note the signals that came; False when no more will come."""
        if self._pipe is None:
            return False
        with self._lock, contextlib.suppress(BlockingIOError):
            numbers = os.read(self._pipe[0], 64)
            for number in numbers:
                if number in self._before:
                    self._note(number, signal.Signals(number).name, time.monotonic())
            return bool(numbers)
        return True

    def _note(self, number: int, name: str, now: float) -> None:
        first = self._came.setdefault(number, now)
        again = now - first >= REPEATED.get(number, float("inf"))
        self._first = self._first or name
        if self._settled:
            return
        if self._at_once:
            self._end_at_once(name)
        if again and not (_supervised and number == signal.SIGINT):
            _end(f"ended at once by the second {name}; nothing more was saved", 128 + number)

    def _end_at_once(self, name: str) -> None:
        recording = threading.Thread(target=self.record, args=(name,), daemon=True)
        recording.start()
        recording.join(_RECORDING)
        _end(f"stopped by {name} with nothing to save; the same line starts it again", ExitCode.STOPPED)


def _left_to_the_thread(number: int, frame: object) -> None:
    """The handler of Python's, which runs in the main thread; see :meth:`StopFlag._listen`."""


def leave_second_to_supervisor() -> None:
    """From now on, no Ctrl-C ends this process at once: our supervisor counts them, and passes the first one on.

    Who sends it to every process of a run (systemd, a terminal) sends it to the ranks, too: they get that one twice.
    """
    global _supervised
    _supervised = True


def unblock() -> None:
    """Let the signals through that a supervisor held back while this process was not ready for them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _end(message: str, code: int) -> None:
    """End this process and what it started, without running what would wait for other threads or ranks."""
    shown = "\x1b[?25h\n" if os.isatty(2) else ""  # a bar may have hidden the cursor
    with contextlib.suppress(OSError):
        os.write(2, f"{shown}recipe: {message}\n".encode())
    for child in _children():
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGTERM)
    os._exit(code)


def _children() -> list[int]:
    """Processes that this one started, where the kernel tells: compilers, readers of data."""
    if sys.platform != "linux":
        return []
    from pathlib import Path

    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _before_a_fork() -> None:
    """Hold signals back: one that came to a fork before it is set up would be the parent's."""
    if signal.getsignal(signal.SIGTERM) is _left_to_the_thread:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_in_parent() -> None:
    if signal.getsignal(signal.SIGTERM) is _left_to_the_thread:
        unblock()


def _after_in_child() -> None:
    """How to stop is the parent's affair, which ends its forks by SIGTERM."""
    if signal.getsignal(signal.SIGTERM) is _left_to_the_thread:
        with contextlib.suppress(ValueError):  # forked from another thread
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_a_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
