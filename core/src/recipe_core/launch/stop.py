"""Signals that ask a run to stop: it exits at once if there is nothing to save, else it saves first.

This module imports next to nothing, so that the command can install a flag before its own imports.
"""

from __future__ import annotations

import contextlib
import enum
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from recipe_core.errors import ExitCode

# Ctrl-C; a batch system's warning before it kills; a closed terminal; signals that batch systems send on request some
# minutes before the time limit (Slurm's --signal). Looked up by name: not every platform has all of them.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
"""Signals that ask a run to stop."""
REPEATED: dict[int, float] = {signal.SIGINT: 1.0, signal.SIGTERM: 1.0}
"""Seconds after which a repeated signal counts as a second one: a launcher and a batch system may both send the first,
and ``timeout`` sends it to a command and to its process group."""
_supervised = False
_ON_EXIT_SECONDS = 3.0
"""Time limit of :attr:`StopFlag.on_exit`, and of :data:`_recorders`."""
_recorders: list[Callable[[str, int], None]] = []
"""Called with the reason and the exit code before a second signal ends this process."""


class StopMode(enum.Enum):
    """Effect of a signal to stop."""

    SAVE = enum.auto()
    """It is noted in :attr:`StopFlag.signal`; the training loop saves and stops."""
    EXIT = enum.auto()
    """It ends the process at once with exit code 75: there is nothing to save."""
    IGNORE = enum.auto()
    """It has no effect: the process is about to end, and its exit code is decided."""


class StopFlag:
    """A context manager that handles the signals to stop as its :attr:`mode` says.

    The training loop reads :attr:`signal` between steps and micro batches, together with the other ranks. In the mode
    SAVE, a second Ctrl-C or SIGTERM after :data:`REPEATED` ends the process at once, with nothing saved; a rank of our
    supervisor leaves the second Ctrl-C to the supervisor. A signal that the process ignores (nohup) stays ignored.
    Outside the main thread, where Python takes no handlers, ``signal`` stays None. Leaving the block restores the
    earlier handlers.

    A thread reads the signals: the main thread may be in a call of minutes, such as a collective or a compilation, in
    which Python runs no handler.
    """

    def __init__(self, mode: StopMode = StopMode.SAVE) -> None:
        self.on_exit: Callable[[str], None] = lambda name: None
        """Called with the name of the signal before it ends the process at once; may take three seconds."""
        self.on_first: Callable[[str], None] = lambda name: None
        """Called with the name of the first signal if it leads to a save, in a thread: it may not hold up the next."""
        self._mode = mode
        self._first: str | None = None
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
                self._before[number] = signal.signal(number, _noop_handler)
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
        """Name of the first signal, or None."""
        self._read()
        return self._first

    @property
    def mode(self) -> StopMode:
        """Effect of the next signal. Setting EXIT ends the process now if a signal came earlier."""
        return self._mode

    @mode.setter
    def mode(self, mode: StopMode) -> None:
        with self._lock:
            self._mode = mode
            if mode is StopMode.EXIT and self._first is not None:
                self._end_at_once(self._first)

    def _listen(self) -> None:
        assert self._pipe is not None
        while select.select([self._pipe[0]], [], []) and self._read():
            pass

    def _read(self) -> bool:
        """Note the signals in the pipe; False when no more will come."""
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
        if self._first is None:
            self._first = name
            if self._mode is StopMode.SAVE:
                threading.Thread(target=self.on_first, args=(name,), daemon=True).start()
        if self._mode is StopMode.IGNORE:
            return
        if self._mode is StopMode.EXIT:
            self._end_at_once(name)
        if again and not (_supervised and number == signal.SIGINT):
            text, code = f"ended at once by the second {name}; nothing more was saved", 128 + number
            _call_in_time(lambda: [record(text, code) for record in _recorders])
            _end(text, code)

    def _end_at_once(self, name: str) -> None:
        _call_in_time(lambda: self.on_exit(name))
        _end(f"stopped by {name} with nothing to save; the same line starts it again", ExitCode.STOPPED)


def _noop_handler(number: int, frame: object) -> None:
    """Python's handler, which runs in the main thread, does nothing: :meth:`StopFlag._listen` reads the signals."""


@contextlib.contextmanager
def recorded_by(recorder: Callable[[str, int], None]) -> Iterator[None]:
    """Call ``recorder`` with the reason and the exit code if a second signal ends this process in the block."""
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.remove(recorder)


def _call_in_time(callback: Callable[[], object]) -> None:
    thread = threading.Thread(target=callback, daemon=True)
    thread.start()
    thread.join(_ON_EXIT_SECONDS)


def leave_second_to_supervisor() -> None:
    """Let no second Ctrl-C end this process: our supervisor counts them, and passes the first one on.

    A sender that signals every process of a run (systemd, a terminal) signals the ranks too: they get the first twice.
    """
    global _supervised
    _supervised = True


def unblock() -> None:
    """Unblock the signals that a supervisor blocked until this process was ready for them."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _end(message: str, code: int) -> None:
    # No interpreter shutdown: its hooks would wait for other threads or ranks.
    shown = "\x1b[?25h\n" if os.isatty(2) else ""  # a bar may have hidden the cursor
    with contextlib.suppress(OSError):
        os.write(2, f"{shown}recipe: {message}\n".encode())
    for child in _children():
        with contextlib.suppress(OSError):
            os.kill(child, signal.SIGTERM)
    os._exit(code)


def _children() -> list[int]:
    # Compilers and data workers, where the kernel lists them.
    if sys.platform != "linux":
        return []
    from pathlib import Path

    pids: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += map(int, path.read_text().split())
    return pids


def _before_a_fork() -> None:
    # A signal that reached a fork before it is set up would be written into the parent's pipe.
    if signal.getsignal(signal.SIGTERM) is _noop_handler:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_in_parent() -> None:
    if signal.getsignal(signal.SIGTERM) is _noop_handler:
        unblock()


def _after_in_child() -> None:
    # The parent decides how to stop, and ends its forks by SIGTERM.
    if signal.getsignal(signal.SIGTERM) is _noop_handler:
        with contextlib.suppress(ValueError):  # forked from another thread
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        unblock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_a_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
