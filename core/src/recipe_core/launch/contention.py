"""Cores that other programs use while a run trains, from Linux's /proc. No torch here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from recipe_core.launch.cores import cpu_quota
from recipe_core.launch.host import PROC, process_counters
from recipe_core.launch.worker import worker

_FIRST, _PAUSE, _LONGEST = 30.0, 60.0, 3600.0
"""Seconds until the first reading, and from one message to the next at first and at most."""
_IDLE = 0.1
"""Share of the cores; while more of them are idle, other programs take nothing from the run."""
_LEAST = 0.25
"""Share of the cores that others use before a message says so."""


@dataclass(frozen=True)
class _Reading:
    """Seconds since some moment in the past."""

    clock: float
    busy: float
    """Of all cores that this process may use, together."""
    own: float
    """Of them, those of the run's processes."""


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
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self._ticks = os.sysconf("SC_CLK_TCK") if self._cores else 1
        self._before: _Reading | None = None
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
        quota = cpu_quota()
        if before is None or now is None or (quota is not None and quota < len(self._cores)):
            return ""
        cores, seconds = len(self._cores), max(now.clock - before.clock, 1e-9)
        busy, own = (now.busy - before.busy) / seconds, (now.own - before.own) / seconds
        others = max(0.0, busy - own)
        if busy < (1 - _IDLE) * cores or others < _LEAST * cores:
            return ""
        self._pause = min(2 * self._pause, _LONGEST)
        return f"other programs use {others:.1f} of the {cores} cores, so that steps take longer"

    def _reading(self) -> _Reading | None:
        try:
            lines = (self._proc / "stat").read_text(encoding="utf-8").splitlines()
            busy, own = self._busy(lines), self._own()
        except (OSError, ValueError, IndexError):  # not Linux
            return None
        return _Reading(self._clock(), busy / self._ticks, own / self._ticks)

    def _busy(self, lines: list[str]) -> int:
        # user, nice, system, irq, softirq, and what the host of a virtual machine took; not idle and iowait
        counts = (line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit())
        mine = [words for words in counts if int(words[0][3:]) in self._cores]
        if not mine:
            raise ValueError("none of this process's cores is listed")
        return sum(int(words[place]) for words in mine for place in (1, 2, 3, 6, 7, 8))

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
