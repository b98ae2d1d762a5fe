"""Trackers: places beside metrics.jsonl where the metrics of a run are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from recipe_core.hooks.loop_specs import TrackerSpec
from recipe_core.hooks.specs import Part
from recipe_core.train.metrics.curves import Row

POSITIONS = ("step", "consumed_samples")
"""Keys of a row that are positions rather than measurements."""
SYSTEM = (
    "peak_memory", "graphs_compiled", "host_transfers", "slowest_rank", "slowest_rank_seconds", "median_rank_seconds",
)  # fmt: skip
"""Measurements of the process and its devices."""
SPEEDS = ("seconds", "mfu")
"""Speeds, beside all that are per second."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run that a tracker is opened for."""

    name: str
    """``recipe`` or ``recipe:variant``."""
    folder: Path
    """The run folder."""
    since: int
    """Steps that were done before. A run that continues logs the steps after it again: what a tracker has of them, from
    a process that was killed, must go. 0: a new run."""
    settings: Mapping[str, Any]
    """All settings of the run, as ``job.yaml`` has them."""
    warn: Callable[[str], None]
    """Takes a message for the user."""


class Tracker(Protocol):
    """An open tracker, on rank 0 alone. What it raises is said once; training goes on."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record ``values`` of ``step``, by their tags: ``train/loss``, ``valid/loss``, ``speed/...``, ``system/...``.

        Steps grow from call to call, and one may come twice: its evaluation may follow later. Not every value is
        finite. The loop waits for the return.
        """
        ...

    def close(self) -> None:
        """Write what is left. It is called once, also after a failure of the run."""
        ...


def tagged(row: Row) -> dict[str, float]:
    """The measurements of a row by their tags: a group and the name in metrics.jsonl."""
    return {_tag(name): value for name, value in row.items() if name not in POSITIONS}


def _tag(name: str) -> str:
    if name.startswith("val_"):
        return f"valid/{name.removeprefix('val_')}"
    if name in SPEEDS or name.endswith("_per_second"):
        return f"speed/{name}"
    return f"{'system' if name in SYSTEM else 'train'}/{name}"


@dataclass
class Trackers:
    """All trackers of a run. No failure of one reaches the loop or another tracker.

    A tracker that failed is asked again with the next row: a server may come back. The first failure is said when it
    happens, what is lost in the end when it is closed.
    """

    parts: Sequence[Part[TrackerSpec]] = ()
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    _open: dict[str, Tracker] = field(default_factory=dict, init=False)
    _lost: dict[str, int] = field(default_factory=dict, init=False)
    """Rows that a tracker did not take."""
    _warn: Callable[[str], None] = field(default=lambda text: None, init=False)

    def open(self, folder: Path, since: int, warn: Callable[[str], None]) -> None:
        """Open each, for a run in ``folder`` that continues after step ``since``."""
        self._warn = warn
        run = TrackedRun(name=self.name, folder=folder, since=since, settings=self.settings, warn=warn)
        for part in self.parts:
            name = part.spec.name
            try:
                self._open[name] = part.build(part.config, run)
            except Exception as error:
                warn(f"tracker {name}: cannot be opened ({_said(error)}); training goes on without it")

    def log(self, row: Row) -> None:
        """Pass a row of metrics on to each."""
        for name, tracker in self._open.items():
            try:
                tracker.log(row["step"], tagged(row))
            except Exception as error:
                if name not in self._lost:
                    self._warn(f"tracker {name}: failed at step {row['step']:,} ({_said(error)}); training goes on")
                self._lost[name] = self._lost.get(name, 0) + 1

    def close(self) -> None:
        """Close each, and say what is lost."""
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except Exception as error:
                self._warn(f"tracker {name}: cannot be closed ({_said(error)})")
            if rows := self._lost.get(name):
                self._warn(f"tracker {name}: it lacks {rows:,} row{'s' * (rows != 1)}; metrics.jsonl has them")
        self._open = {}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
