"""The heartbeat of this rank: the activity of each of its threads, and since when. Imports no torch.

The training loop reports each activity, in about a microsecond; :mod:`recipe_core.launch.watch.watchdog` reads them in
a thread of its own and writes them for the other ranks.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType, TracebackType
from typing import NamedTuple

LOADER, FORWARD, BACKWARD, SAVE = "loader", "forward", "backward", "save"
_FRAMES = 12
"""Innermost frames of each stack."""
WATCHERS = "watchdog"
"""Prefix of the names of the watchdog's threads."""
_SILENT = (WATCHERS, "signals")
"""Prefixes of the names of threads without stacks."""
_IDLE = "_worker"
"""The function in which a pool thread waits for work."""


class Activity(NamedTuple):
    """The activity of one thread."""

    name: str
    waits: bool
    """It waits for other ranks."""
    since: float
    """By ``time.monotonic``."""
    step: int
    """The optimizer step under way, from 1; 0 before the first."""
    micro: int | None
    """The micro batch of the step, from 0, if any."""
    within: str = ""
    """The enclosing activity, if known."""


class Work(NamedTuple):
    """The steps of this process so far."""

    steps: int
    seconds: float
    """Time in these steps, without waits for other ranks, and without backward, in which computing and the exchange of
    gradients cannot be told apart."""


class Heartbeat:
    """The activities of the threads that take part in training, by thread number.

    It needs no locks: each thread writes only its own entry.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Clear all activities; call it in the main thread of a run, since a fork inherits those of its parent."""
        self.main = threading.get_ident()
        self.step = 0
        self.activities: dict[int, Activity] = {self.main: Activity("start", False, time.monotonic(), 0, None)}
        self.work = Work(0, 0.0)
        self.waited = 0.0
        """Seconds of the main thread that do not count as work."""
        self._step_began = (0.0, 0.0)
        self._backward_began: tuple[float, float] | None = None

    def enter(self, name: str, micro: int | None = None) -> None:
        """Report that this thread begins the activity ``name``."""
        now = time.monotonic()
        if self._backward_began is not None:
            began, waited = self._backward_began
            self.waited, self._backward_began = waited + now - began, None
        if name == BACKWARD:
            self._backward_began = (now, self.waited)
        self.activities[threading.get_ident()] = Activity(name, False, now, self.step, micro)

    def begin_step(self, step: int) -> None:
        """Report that the main thread begins optimizer step ``step``, by loading its batches."""
        self.step = step
        self.enter(LOADER)
        self._step_began = (time.monotonic(), self.waited)

    def end_step(self) -> None:
        """Report the end of a step."""
        self.enter("between steps")
        began, waited = self._step_began
        seconds = time.monotonic() - began - (self.waited - waited)
        self.work = Work(self.work.steps + 1, self.work.seconds + seconds)

    def during(self, name: str) -> _Block:
        """Return a context of the activity ``name``, after which the thread resumes the one before."""
        return _Block(self, name, False)

    def waiting(self, name: str) -> _Block:
        """Return a context in which this thread waits for other ranks, in the operation ``name``."""
        return _Block(self, name, True)


class _Block:
    """See :meth:`Heartbeat.during`; a generator-based context would take twice as long."""

    __slots__ = ("_before", "_heartbeat", "_name", "_number", "_since", "_waits")

    def __init__(self, heartbeat: Heartbeat, name: str, waits: bool) -> None:
        self._heartbeat, self._name, self._waits = heartbeat, name, waits

    def __enter__(self) -> None:
        activities = self._heartbeat.activities
        self._number, self._since = threading.get_ident(), time.monotonic()
        self._before = before = activities.get(self._number)
        if before is None:
            activities[self._number] = Activity(self._name, self._waits, self._since, self._heartbeat.step, None)
        else:
            within = before.within if before.waits else before.name
            activities[self._number] = Activity(
                self._name, self._waits or before.waits, self._since, self._heartbeat.step, before.micro, within
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        heartbeat, before, now = self._heartbeat, self._before, time.monotonic()
        if self._waits and self._number == heartbeat.main and not (before is not None and before.waits):
            heartbeat.waited += now - self._since
        if before is None:
            heartbeat.activities.pop(self._number, None)
        else:
            name, waits, _, step, micro, within = before
            heartbeat.activities[self._number] = Activity(name, waits, now, step, micro, within)


beat = Heartbeat()
"""The heartbeat of this process, which is one rank."""


def stacks() -> dict[str, list[str]]:
    """Return the Python stacks of the busy threads by name, innermost call last, the main thread first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, lines = threading.main_thread().ident, {}
    for number, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        name = names.get(number, f"thread {number}")
        if not name.startswith(_SILENT) and frame.f_code.co_name != _IDLE:
            lines[name] = _lines(frame)
    return lines


def _lines(frame: FrameType | None) -> list[str]:
    # Without source lines: the disk that holds them may be what hangs.
    lines: list[str] = []
    while frame is not None and len(lines) < _FRAMES:
        lines.append(f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}')
        frame = frame.f_back
    return lines[::-1]
