"""The ranks' own time for a step, compared: names a rank that is slow, not dead. Imports no torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recipe_core.launch.watch.board import Record

FACTOR = 1.5
"""So many times the median of the ranks makes a slow one."""
LEAST = 0.02
"""Seconds a step above the median that count, at least."""
STEPS = 3
"""Steps that are compared at a time, at least."""
AGAIN = 600.0
"""Seconds until the same rank is named again."""


@dataclass(frozen=True)
class _Mark:
    """A rank's counters when they were last compared."""

    process: str
    steps: int
    seconds: float


class Pace:
    """Compares what ranks say on the board: their time in steps, without backward and waiting for other ranks.

    In step with each other, all ranks take equally long; the slow one is that which waits least. Nothing is measured on
    the device and nothing is exchanged for it.

    Args:
        rank: of this process.
        say: takes a line about a slow rank.
    """

    def __init__(self, rank: int, say: Callable[[str], None]) -> None:
        self._rank, self._say = rank, say
        self._marks: dict[int, _Mark] = {}
        self._times: dict[int, float] = {}
        self._suspect: int | None = None
        self._named: dict[int, float] = {}

    def look(self, records: Mapping[int, Record | None]) -> None:
        """Compare the steps since the last comparison, once each rank has made enough."""
        if any(record is None for record in records.values()):
            return
        marks = {
            rank: _Mark(str(record["process"]), int(record["steps"]), float(record["work_seconds"]))
            for rank, record in records.items()
            if record is not None
        }
        before, self._marks = self._marks, self._marks or marks
        if any(rank not in before or before[rank].process != mark.process for rank, mark in marks.items()):
            self._marks = marks
            return
        if any(mark.steps - before[rank].steps < STEPS for rank, mark in marks.items()):
            return
        self._marks = marks
        self._times = {
            rank: (mark.seconds - before[rank].seconds) / (mark.steps - before[rank].steps)
            for rank, mark in marks.items()
        }
        self._judge(records)

    def row(self) -> dict[str, float]:
        """``slowest_rank``, its seconds of its own for a step, and the median over the ranks."""
        times = dict(self._times)
        if not times:
            return {}
        slowest = max(times, key=times.__getitem__)
        return {
            "slowest_rank": slowest,
            "slowest_rank_seconds": times[slowest],
            "median_rank_seconds": statistics.median_low(list(times.values())),
        }

    def _judge(self, records: Mapping[int, Record | None]) -> None:
        """Name the slowest rank where it was so twice in a row."""
        row = self.row()
        rank, seconds, median = int(row["slowest_rank"]), row["slowest_rank_seconds"], row["median_rank_seconds"]
        before, self._suspect = self._suspect, None
        if seconds < FACTOR * median or seconds - median < LEAST:
            return
        self._suspect = rank
        now = time.monotonic()
        if before != rank or now < self._named.get(rank, -AGAIN) + AGAIN:
            return
        self._named[rank] = now
        host = (records[rank] or {}).get("host", "?")
        self._say(
            f"rank {rank} (host {host}) is slow: loader, forward and optimizer take {seconds:.3g} s a step there, and "
            f"{median:.3g} s on the median rank; the others wait for it"
        )
