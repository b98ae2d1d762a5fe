"""Trackers: destinations for the metrics of a run besides metrics.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.loop import TrackerSpec
from recipe_core.hooks.target import described
from recipe_core.train.metrics.curves import Row

POSITIONS = ("step", "consumed_samples")
"""Keys of a row that are positions rather than measurements."""
SYSTEM = (
    "peak_memory", "graphs_compiled", "host_transfers", "slowest_rank", "slowest_rank_seconds", "median_rank_seconds",
)  # fmt: skip
"""Measurements of the process and its devices."""
SPEEDS = ("seconds", "mfu")
"""Speeds, besides names that end with ``_per_second``."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run that a tracker is opened for."""

    name: str
    """``recipe`` or ``recipe:variant``."""
    folder: Path
    """The run folder."""
    since: int
    """Steps done before; 0 in a new run. A continued run logs the steps after it again: a tracker must drop later steps
    that a killed process logged."""
    settings: Mapping[str, Any]
    """All settings of the run, as ``job.yaml`` has them."""
    warn: Callable[[str], None]
    """Called with messages for the user."""


class Tracker(Protocol):
    """An open tracker, on rank 0 only. Its errors are reported once, and training continues."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record ``values`` of ``step``, by their tags: ``train/loss``, ``valid/loss``, ``speed/...``, ``system/...``.

        Steps do not decrease; a step may come twice, if its evaluation follows later. Values may be infinite or NaN.
        The training loop waits for the return.
        """
        ...

    def close(self) -> None:
        """Write what is pending. Called once, also after a failure of the run."""
        ...


def tagged(row: Row) -> dict[str, float]:
    """The measurements of a row by their tags: a group and the name in metrics.jsonl."""
    return {_tag(name): value for name, value in row.items() if name not in POSITIONS}


def _tag(name: str) -> str:
    if "/" in name:  # NAME/number of an evaluation
        return name
    if name.startswith("val_"):
        return f"valid/{name.removeprefix('val_')}"
    if name in SPEEDS or name.endswith("_per_second"):
        return f"speed/{name}"
    return f"{'system' if name in SYSTEM else 'train'}/{name}"


@dataclass
class Trackers:
    """All trackers of a run. A failure of one affects neither training nor other trackers.

    A tracker that failed gets the next row again, since a server may recover. The first failure is reported when it
    happens, the number of lost rows when the tracker is closed.
    """

    parts: Sequence[Part[TrackerSpec]] = ()
    name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    _open: dict[str, Tracker] = field(default_factory=dict, init=False)
    _lost: dict[str, int] = field(default_factory=dict, init=False)
    """Rows that each tracker failed to log."""
    _warn: Callable[[str], None] = field(default=lambda text: None, init=False)

    def open(self, folder: Path, since: int, warn: Callable[[str], None]) -> None:
        """Open all trackers for a run in ``folder`` that continues after step ``since``."""
        self._warn = warn
        run = TrackedRun(name=self.name, folder=folder, since=since, settings=self.settings, warn=warn)
        for part in self.parts:
            name = part.spec.name
            try:
                self._open[name] = part.build(part.config, run)
            except (Exception, SystemExit) as error:
                warn(f"tracker {name}: cannot be opened ({described(error)}); training goes on without it")

    def log(self, row: Row) -> None:
        """Log a row of metrics with all trackers."""
        for name, tracker in self._open.items():
            try:
                tracker.log(row["step"], tagged(row))
            except (Exception, SystemExit) as error:
                if name not in self._lost:
                    self._warn(f"tracker {name}: failed at step {row['step']:,} ({described(error)}); training goes on")
                self._lost[name] = self._lost.get(name, 0) + 1

    def close(self) -> None:
        """Close all trackers, and report lost rows."""
        for name, tracker in self._open.items():
            try:
                tracker.close()
            except (Exception, SystemExit) as error:
                self._warn(f"tracker {name}: cannot be closed ({described(error)})")
            if rows := self._lost.get(name):
                self._warn(f"tracker {name}: it lacks {rows:,} row{'s' * (rows != 1)}; metrics.jsonl has them")
        self._open = {}
