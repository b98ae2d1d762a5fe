"""Cores that other programs use while a run trains, from Linux's /proc. No torch here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from recipe_core.launch.cores import MANY, Reading, busy_seconds, own_cores, quota_below
from recipe_core.launch.host import PROC, process_counters
from recipe_core.launch.worker import worker

_FIRST, _PAUSE, _LONGEST = 30.0, 60.0, 3600.0
"""Seconds until the first reading, and from one message to the next at first and at most."""
_IDLE = 0.1
"""Share of the cores; while more of them are idle, other programs take nothing from the run."""


class Contention:
    """Messages about other programs on the cores of a run, one every minute at first and every hour later.

    Args:
        root: the process whose descendants are the run, and it itself.
        clock: seconds.
        proc: the mount of the proc filesystem.
    """

    def __init__(
        self, root: int, clock: Callable[[], float] = time.monotonic, proc: Path = PROC
    ) -> None:  # fmt: skip
        self._root, self._clock, self._proc = root, clock, proc
        self._cores = own_cores()
        self._before: Reading | None = None
        self._pause, self._due = _PAUSE, 0.0

    @classmethod
    def of_run(cls) -> Contention:
        """Messages for the run that this process is a rank of."""
        me = worker()
        return cls(os.getppid() if me is not None and me.local_world_size > 1 else os.getpid())

    def __call__(self) -> str:
        """Return a message if others have used a good part of the cores since the last reading, and none were idle.

        Empty otherwise, at the first call, where it is not yet time for a reading, under a quota, which pauses the run
        itself, and where there is no such /proc.
        """
        if self._clock() < self._due or not self._cores:
            return ""
        before, now = self._before, self._reading()
        self._before, self._due = now, self._clock() + (self._pause if before else _FIRST)
        if before is None or now is None or quota_below(len(self._cores)):
            return ""
        cores, seconds = len(self._cores), max(now.clock - before.clock, 1e-9)
        busy, own = (now.busy - before.busy) / seconds, (now.own - before.own) / seconds
        others = max(0.0, busy - own)
        if busy < (1 - _IDLE) * cores or others < MANY * cores:
            return ""
        self._pause = min(2 * self._pause, _LONGEST)
        return f"other programs use {others:.1f} of the {cores} cores, so that steps take longer"

    def _reading(self) -> Reading | None:
        try:
            busy, own = busy_seconds(self._cores, self._proc), self._own() / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):  # not Linux
            return None
        return Reading(self._clock(), busy, own)

    def _own(self) -> int:
        ticks, children = {}, dict[int, list[int]]()
        for pid, parent, used in _processes(self._proc):
            ticks[pid] = used
            children.setdefault(parent, []).append(pid)
        found, todo = 0, [self._root]
        while todo:
            pid = todo.pop()
            found += ticks.get(pid, 0)
            todo += children.get(pid, [])
        return found


def _processes(proc: Path) -> Iterator[tuple[int, int, int]]:
    """Process id, parent, and the ticks of each process and of its children that have ended."""
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = process_counters(int(folder.name), proc)
        except OSError:  # it has ended
            continue
        yield int(folder.name), int(fields[1]), sum(map(int, fields[11:15]))
