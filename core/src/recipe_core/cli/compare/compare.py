"""Runs laid over each other: how far their curves are apart, how fast they were, and which settings differ.

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
from recipe_core.train.metrics.curves import METRICS, Curve
from recipe_core.train.metrics.golden import away, within

SPEEDS = ("sequences_per_second", "real_tokens_per_second", "tokens_per_second", "mfu")
WHERE = ("device", "world_size", "torch")
"""Entries of results.json about the machine of a run; listed with the settings."""


@dataclass(frozen=True)
class Point:
    """Both curves at a step that they have in common."""

    step: int
    first: float
    other: float

    @property
    def absolute(self) -> float:
        """The other's value less the first's."""
        return self.other - self.first

    @property
    def relative(self) -> float:
        """The distance as a part of the first's value; infinite where one of the two is not finite."""
        return away(self.other, self.first)

    def as_dict(self) -> dict[str, float | None]:
        """Plain data; JSON has no infinity, which becomes null."""
        values = {"first": self.first, "other": self.other, "absolute": self.absolute, "relative": self.relative}
        return {"step": self.step, **{key: finite(value) for key, value in values.items()}}


@dataclass(frozen=True)
class Departure:
    """How far one run is from the first."""

    run: Curve
    steps: int
    """Steps that both have."""
    largest: Point
    """Where they are farthest apart, relative to the first's value."""
    beyond: Point | None
    """The first step at which they are farther apart than the tolerance."""


@dataclass(frozen=True)
class Comparison:
    """Several runs, the first of which the others are measured against."""

    metric: str
    tolerance: float | None
    """As a part of the first run's value."""
    curves: Sequence[Curve]
    departures: Sequence[Departure]
    settings: Mapping[str, list[Any]]
    """The settings that are not the same in all runs that have any; None where a run has no such setting."""

    @property
    def beyond(self) -> list[Departure]:
        """Those that are farther off than the tolerance."""
        return [departure for departure in self.departures if departure.beyond is not None]

    @property
    def names(self) -> list[str]:
        """A short name for each run."""
        return names_of(self.curves)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for ``--json``."""
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
    """Lay the runs over each other; the first is what the others are measured against.

    Raises:
        DataError: a run has no such metric, or no step of it in common with the first.
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
    mine, theirs = first.values(metric), other.values(metric)
    largest = beyond = None
    common = sorted(mine.keys() & theirs.keys())
    for step in common:
        point = Point(step, mine[step], theirs[step])
        if largest is None or point.relative > largest.relative:
            largest = point
        if beyond is None and tolerance is not None and not within(point.other, point.first, tolerance):
            beyond = point
    if largest is None:
        raise DataError(
            f"{first.path} and {other.path} have no step in common: {_span(mine)}, and {_span(theirs)}; "
            "give both the same train.log_every"
        )
    return Departure(other, len(common), largest, beyond)


def _span(values: Mapping[int, float]) -> str:
    steps = sorted(values)
    return f"{len(steps):,} steps from {steps[0]:,} to {steps[-1]:,}"


def names_of(curves: Sequence[Curve]) -> list[str]:
    """A short name for each run: the last part of its path, where that tells them apart."""
    folders = [curve.path.parent if curve.path.name == METRICS else curve.path for curve in curves]
    short = [folder.name for folder in folders]
    return short if len(set(short)) == len(short) and all(short) else [str(curve.path) for curve in curves]


def ends(curve: Curve, metric: str) -> dict[str, float | None]:
    """First and last value of the metric and of its counterpart in validation, where there is one."""
    found: dict[str, float | None] = {}
    for key in (metric, f"val_{metric}"):
        values = curve.values(key)
        if values:
            found |= {f"first_{key}": finite(values[min(values)]), key: finite(values[max(values)])}
    return found


def speeds(curve: Curve) -> dict[str, float]:
    """The median of every speed that the run measured."""
    measured = {key: [v for v in curve.values(key).values() if math.isfinite(v)] for key in SPEEDS}
    if not measured["sequences_per_second"]:  # of a version that did not write it
        measured["sequences_per_second"] = list(curve.values("samples_per_second").values())
    return {key: statistics.median(values) for key, values in measured.items() if values}


def finite(value: float) -> float | None:
    """``value``, or None where it is no finite number."""
    return value if math.isfinite(value) else None


def write_golden(curve: Curve, path: Path) -> int:
    """Store the losses of ``curve`` as a file for ``train.golden``; return how many steps it has.

    Raises:
        ConfigError: there is a file that is no such curve.
        DataError: there is no loss, or one that is not finite.
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
    """True if :func:`write_golden` wrote the file: every line is a step and its loss, and nothing else."""
    try:
        rows = [parse_json(line) for line in read_text(path).splitlines()]
    except (OSError, ValueError):
        return False
    return bool(rows) and all(isinstance(row, dict) and row.keys() == {"step", "loss"} for row in rows)


def settings_of(curve: Curve) -> dict[str, Any]:
    """The settings of a run and its machine, by path of the setting; empty if unknown.

    Raises:
        DataError: a file of the run folder cannot be read.
    """
    found: dict[str, Any] = {}
    for name in ("job.yaml", "results.json"):
        path = curve.beside(name)
        try:
            data = (read_yaml if name == "job.yaml" else read_json)(path) if path else {}
        except (OSError, DocumentError) as error:
            raise DataError(f"{path}: cannot be read ({error})") from error
        if isinstance(data, Mapping):
            found |= dict(flat(data)) if name == "job.yaml" else {key: data[key] for key in WHERE if key in data}
    return found


def differing(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs that have any; None where a run has no such setting."""
    return dict(_differences(settings))


def _differences(settings: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    known = [one for one in settings if one]
    for key in dict.fromkeys(key for one in known for key in one):
        if any(one.get(key) != known[0].get(key) for one in known):
            yield key, [one.get(key) for one in settings]
