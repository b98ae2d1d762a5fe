"""Detection of a rank that is slow, not dead: the ranks' own times for a step are compared. Imports no torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from recipe_core.launch.watch.heartbeat_files import Record

FACTOR = 1.5
"""A slow rank takes at least this many times the median."""
LEAST = 0.02
"""A slow rank takes at least this many seconds a step more than the median."""
STEPS = 3
"""Steps that each rank makes, at least, between two comparisons."""
AGAIN = 600.0
"""Seconds before the same rank is reported again."""


@dataclass(frozen=True)
class _Counters:
    """The counters of a rank at the last comparison."""

    process: str
    steps: int
    seconds: float


class StragglerDetector:
    """Compares the heartbeats of the ranks: their time in steps, without backward and waits for other ranks.

    Synchronous ranks take equally long for a step; the slow one waits least. Nothing is measured on the device, and no
    collective is needed.

    Args:
        rank: of this process.
        say: takes a line about a slow rank.
    """

    def __init__(self, rank: int, say: Callable[[str], None]) -> None:
        self._rank, self._say = rank, say
        self._counters: dict[int, _Counters] = {}
        self._step_seconds: dict[int, float] = {}
        self._suspect: int | None = None
        self._reported: dict[int, float] = {}

    def update(self, records: Mapping[int, Record | None]) -> None:
        """Compare the steps since the last comparison, once each rank has made :data:`STEPS`."""
        if any(record is None for record in records.values()):
            return
        counters = {
            rank: _Counters(str(record["process"]), int(record["steps"]), float(record["work_seconds"]))
            for rank, record in records.items()
            if record is not None
        }
        before, self._counters = self._counters, self._counters or counters
        if any(rank not in before or before[rank].process != count.process for rank, count in counters.items()):
            self._counters = counters
            return
        if any(count.steps - before[rank].steps < STEPS for rank, count in counters.items()):
            return
        self._counters = counters
        self._step_seconds = {
            rank: (count.seconds - before[rank].seconds) / (count.steps - before[rank].steps)
            for rank, count in counters.items()
        }
        self._report(records)

    def row(self) -> dict[str, float]:
        """Return ``slowest_rank``, its own seconds a step, and the median over the ranks; empty if unknown."""
        times = dict(self._step_seconds)
        if not times:
            return {}
        slowest = max(times, key=times.__getitem__)
        return {
            "slowest_rank": slowest,
            "slowest_rank_seconds": times[slowest],
            "median_rank_seconds": statistics.median_low(list(times.values())),
        }

    def _report(self, records: Mapping[int, Record | None]) -> None:
        row = self.row()
        rank, seconds, median = int(row["slowest_rank"]), row["slowest_rank_seconds"], row["median_rank_seconds"]
        before, self._suspect = self._suspect, None
        if seconds < FACTOR * median or seconds - median < LEAST:
            return
        self._suspect = rank
        now = time.monotonic()
        if before != rank or now < self._reported.get(rank, -AGAIN) + AGAIN:  # slow once may be chance
            return
        self._reported[rank] = now
        host = (records[rank] or {}).get("host", "?")
        self._say(
            f"rank {rank} (host {host}) is slow: loader, forward and optimizer take {seconds:.3g} s a step there, and "
            f"{median:.3g} s on the median rank; the others wait for it"
        )
