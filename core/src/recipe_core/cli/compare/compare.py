"""Comparison of runs: largest difference of their curves, speeds, and settings that differ.

Imports no torch.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError, DataError, did_you_mean
from recipe_core.files import write_text
from recipe_core.files.documents import DocumentError, parse_json, read_json, read_text, read_yaml
from recipe_core.settings.fill import flat
from recipe_core.train.guards.golden import relative_error, within
from recipe_core.train.metrics.curves import METRICS, Curve

SPEEDS = {
    "sequences_per_second": "sequences/s", "real_tokens_per_second": "real tokens/s", "tokens_per_second": "tokens/s",
    "mfu": "MFU",
}  # fmt: skip
"""The heading of each speed in a table."""
MACHINE_KEYS = ("device", "world_size", "torch")
"""Keys of results.json about the machine of a run; listed with the settings."""


@dataclass(frozen=True)
class Point:
    """Values of two curves at a common step."""

    step: int
    first: float
    other: float

    @property
    def absolute(self) -> float:
        """``other - first``."""
        return self.other - self.first

    @property
    def relative(self) -> float:
        """Distance relative to the first's value; infinite if one of the two is not finite."""
        return relative_error(self.other, self.first)

    def as_dict(self) -> dict[str, float | None]:
        """Return plain data for JSON; a value that is not finite becomes None."""
        values = {"first": self.first, "other": self.other, "absolute": self.absolute, "relative": self.relative}
        return {"step": self.step, **{key: finite(value) for key, value in values.items()}}


@dataclass(frozen=True)
class Departure:
    """Difference of one run from the first."""

    run: Curve
    steps: int
    """Number of common steps."""
    largest: Point
    """The point of the largest relative difference."""
    beyond: Point | None
    """The first point beyond the tolerance; None if there is none."""


@dataclass(frozen=True)
class Comparison:
    """Several runs, compared with the first."""

    metric: str
    tolerance: float | None
    """Relative to the first run's value."""
    curves: Sequence[Curve]
    departures: Sequence[Departure]
    settings: Mapping[str, list[Any]]
    """Settings that differ between the runs that have settings, by path; None if a run lacks one."""

    @property
    def beyond(self) -> list[Departure]:
        """Departures beyond the tolerance."""
        return [departure for departure in self.departures if departure.beyond is not None]

    @property
    def names(self) -> list[str]:
        """Short names of the runs."""
        return names_of(self.curves)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {
            "metric": self.metric,
            "tolerance": self.tolerance,
            "runs": [
                {"path": str(curve.path), "steps": len(curve.values(self.metric)), **ends(curve, self.metric)}
                | {"speed": speeds(curve)}
                for curve in self.curves
            ],
            "departures": [
                {
                    "path": str(departure.run.path),
                    "common_steps": departure.steps,
                    "largest": departure.largest.as_dict(),
                    "first_beyond": departure.beyond.as_dict() if departure.beyond else None,
                }
                for departure in self.departures
            ],
            "settings": dict(self.settings),
        }


def compare(curves: Sequence[Curve], metric: str = "loss", tolerance: float | None = None) -> Comparison:
    """Compare each run with the first.

    Raises:
        DataError: a run lacks the metric, or has no step in common with the first.
    """
    for curve in curves:
        if metric not in curve.columns:
            known = sorted(curve.columns.keys() - {"step"})
            hint = did_you_mean(metric, known)
            raise DataError(f"{curve.path}: no line has {metric!r}{hint} (there are: {', '.join(known)})")
    first = curves[0]
    departures = [_departure(first, other, metric, tolerance) for other in curves[1:]]
    return Comparison(metric, tolerance, curves, departures, differing([settings_of(curve) for curve in curves]))


def _departure(first: Curve, other: Curve, metric: str, tolerance: float | None) -> Departure:
    first_values, other_values = first.values(metric), other.values(metric)
    largest = beyond = None
    common = sorted(first_values.keys() & other_values.keys())
    for step in common:
        point = Point(step, first_values[step], other_values[step])
        if largest is None or point.relative > largest.relative:
            largest = point
        if beyond is None and tolerance is not None and not within(point.other, point.first, tolerance):
            beyond = point
    if largest is None:
        raise DataError(
            f"{first.path} and {other.path} have no step in common: {_span(first_values)}, and {_span(other_values)}; "
            "give both the same train.log_every"
        )
    return Departure(other, len(common), largest, beyond)


def _span(values: Mapping[int, float]) -> str:
    steps = sorted(values)
    return f"{len(steps):,} steps from {steps[0]:,} to {steps[-1]:,}"


def names_of(curves: Sequence[Curve]) -> list[str]:
    """Return short names: the last part of each path if these are unique, else whole paths."""
    folders = [curve.path.parent if curve.path.name == METRICS else curve.path for curve in curves]
    short = [folder.name for folder in folders]
    return short if len(set(short)) == len(short) and all(short) else [str(curve.path) for curve in curves]


def ends(curve: Curve, metric: str) -> dict[str, float | None]:
    """Return the first and last value of the metric and of its validation metric, if there is one."""
    end_values: dict[str, float | None] = {}
    for key in (metric, f"val_{metric}"):
        values = curve.values(key)
        if values:
            end_values |= {f"first_{key}": finite(values[min(values)]), key: finite(values[max(values)])}
    return end_values


def speeds(curve: Curve) -> dict[str, float]:
    """Return the median of each speed that the run measured."""
    measured = {key: [v for v in curve.values(key).values() if math.isfinite(v)] for key in SPEEDS}
    if not measured["sequences_per_second"]:  # an older version did not write it
        measured["sequences_per_second"] = list(curve.values("samples_per_second").values())
    return {key: statistics.median(values) for key, values in measured.items() if values}


def number_text(value: float | None) -> str:
    """Return a value of a metric for a table; None is not finite either."""
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4f}"


def speed_text(key: str, value: float) -> str:
    """Return a value of one of :data:`SPEEDS` for a table."""
    return f"{value:.1%}" if key == "mfu" else f"{value:,.1f}"


def finite(value: float) -> float | None:
    """Return ``value``, or None if it is not finite."""
    return value if math.isfinite(value) else None


def write_golden(curve: Curve, path: Path) -> int:
    """Store the losses of ``curve`` as a file for ``train.golden``; return how many steps it has.

    Raises:
        ConfigError: ``path`` is another kind of file.
        DataError: there is no loss, or a loss is not finite.
        DiskError: the file cannot be written.
    """
    losses = curve.values("loss")
    if not losses:
        raise DataError(f"{curve.path}: no line has 'loss'; it is no curve to hold a run to")
    for step, loss in losses.items():
        if not math.isfinite(loss):
            raise DataError(f"{curve.path}: the loss of step {step} is not finite; it is no curve to hold a run to")
    if path.exists() and not _is_golden(path):
        raise ConfigError(f"{path} exists and is no file for train.golden; name another, or remove it yourself")
    write_text(path, "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items()))
    return len(losses)


def _is_golden(path: Path) -> bool:
    try:
        rows = [parse_json(line) for line in read_text(path).splitlines()]
    except (OSError, ValueError):
        return False
    return bool(rows) and all(isinstance(row, dict) and row.keys() == {"step", "loss"} for row in rows)


def settings_of(curve: Curve) -> dict[str, Any]:
    """Read the settings of a run and its machine, by path of the setting; empty if unknown.

    Raises:
        DataError: a file of the run folder cannot be read.
    """
    settings, results = dict(flat(read_beside(curve, "job.yaml"))), read_beside(curve, "results.json")
    return settings | {key: results[key] for key in MACHINE_KEYS if key in results}


def read_beside(curve: Curve, name: str) -> Mapping[str, Any]:
    """Read the YAML or JSON file ``name`` of the run folder; empty if there is none, or if it holds something else.

    Raises:
        DataError: it cannot be read.
    """
    path = curve.sibling(name)
    try:
        data = (read_yaml if name.endswith(".yaml") else read_json)(path) if path else {}
    except (OSError, DocumentError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return data if isinstance(data, Mapping) else {}


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that differ between the runs that have settings; None if a run lacks one."""
    return dict(_differences(settings))


def _differences(settings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    known = [run for run in settings if run]
    for key in dict.fromkeys(key for run in known for key in run):
        if any(run.get(key) != known[0].get(key) for run in known):
            yield key, [run.get(key) for run in settings]
