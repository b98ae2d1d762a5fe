"""The facts of a run that a report shows, read from its folder. No torch here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipe_core.cli.cluster.run_status import RunStatus, run_status
from recipe_core.cli.compare.compare import MACHINE_KEYS, names_of, read_beside, settings_of
from recipe_core.train.metrics.curves import Curve, damage, read_run
from recipe_core.train.metrics.results import RESULTS

if TYPE_CHECKING:
    from recipe_core.hooks.registry import Registry

_MAX_PICTURE = 2_000_000
"""Bytes of a picture at most, since the page embeds it."""


@dataclass(frozen=True)
class ReportedRun:
    """The contents of a run folder."""

    name: str
    """Short, and unique in the report."""
    curve: Curve
    """Its metrics; without columns if there are none yet."""
    run_status: RunStatus
    settings: Mapping[str, Any]
    """By path of the setting."""
    results: Mapping[str, Any]
    """results.json; empty if there is none."""
    pictures: Sequence[Path]
    notes: Sequence[str]
    """Problems of its files."""

    @property
    def ended(self) -> tuple[str, object, str]:
        """State, exit code and reason."""
        status = self.run_status
        if status.state == "new" and self.results:  # no process was recorded
            stopped = self.results.get("stopped")
            return "stopped" if stopped else "finished", self.results.get("exit_code"), str(stopped or "")
        return status.state, status.exit_code, status.detail

    @property
    def steps(self) -> int | None:
        """Steps of the schedule; None if not known."""
        steps = self.results.get("steps", self.settings.get("train.steps"))
        return steps if isinstance(steps, int) else None

    @property
    def step(self) -> int:
        """The last logged or finished step."""
        logged = [steps[-1] for steps, _ in self.curve.columns.values() if steps]
        finished = self.results.get("step")
        return max([*logged, finished if isinstance(finished, int) else 0])

    def finite(self, key: str) -> list[tuple[int, float]]:
        """Return step and value of the finite values of a metric, in order."""
        return [(step, value) for step, value in sorted(self.curve.values(key).items()) if math.isfinite(value)]

    def median(self, key: str) -> float | None:
        """Return the median of a metric; None if it was not measured."""
        values = [value for _, value in self.finite(key)]
        return statistics.median(values) if values else None

    def training_seconds(self) -> float | None:
        """Return the time of all logged steps, without evaluation and checkpoints; None if it was not measured."""
        each = self.finite("seconds")
        spans = pairwise([(0, 0.0), *each])
        return sum(seconds * (step - before) for (before, _), (step, seconds) in spans) if each else None


def read_runs(registry: Registry, folders: Sequence[Path]) -> list[ReportedRun]:
    """Read each run folder.

    Raises:
        ConfigError: one is not a run folder.
        DataError: a file in it cannot be read.
    """
    damaged: list[dict[int, bytes]] = [{} for _ in folders]
    statuses = [run_status(registry, folder) for folder in folders]
    curves = [read_run(folder, lines) for folder, lines in zip(folders, damaged, strict=True)]
    return [
        _run(name, curve, status, lines)
        for name, curve, status, lines in zip(names_of(curves), curves, statuses, damaged, strict=True)
    ]


def _run(name: str, curve: Curve, status: RunStatus, damaged: Mapping[int, bytes]) -> ReportedRun:
    notes = [f"{damage(curve.file, damaged)}; left out"] if damaged else []
    pictures = []
    for path in sorted(curve.path.glob("*.png")):
        if path.stat().st_size <= _MAX_PICTURE:
            pictures.append(path)
        else:
            notes.append(f"{path}: left out, it has more than {_MAX_PICTURE / 1e6:.0f} MB")
    settings = {key: value for key, value in settings_of(curve).items() if key not in MACHINE_KEYS}
    return ReportedRun(name, curve, status, settings, read_beside(curve, RESULTS), pictures, notes)
