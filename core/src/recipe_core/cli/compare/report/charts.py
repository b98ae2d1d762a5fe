"""Charts of the page: their curves and points as plain data. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.cli.compare.report.runs import ReportedRun
from recipe_core.train.metrics import plotting
from recipe_core.train.metrics.tracker import POSITIONS, tagged

MAX_POINTS = 4000
"""Points of a curve at most, so that the page has some megabytes."""
_DASHES = dict(zip(plotting.DASHES, ("solid", "dash", "dot", "dashdot"), strict=True))
_VALIDATION = "val_"
_SPEEDS = ("mfu", "sequences_per_second", "tokens_per_second", "real_tokens_per_second")
"""Speeds; the last of those that most runs measured is in the first charts."""


def style_of(number: int) -> dict[str, str]:
    """Return colour and dashes of a run, in plotly's terms."""
    colour, dashes = plotting.style_of(number)
    return {"colour": colour, "dash": _DASHES[dashes]}


def charts(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Return the charts of all runs: the main ones, then those with ``more`` set.

    A curve has ``run``, ``steps`` and ``values``, exactly as in metrics.jsonl, and None for a value that is not finite;
    a smoothed curve also has ``smooth``; ``validation`` has steps and values of its own.
    """
    keys = _keys(runs)
    counts = {key: sum(key in run.curve.columns for run in runs) for key in _SPEEDS}
    speed = max(_SPEEDS, key=lambda key: (counts[key], _SPEEDS.index(key)))
    shown = [key for key in keys if _group(key) in ("train", "valid") and key != "epoch"]
    shown += [key for key in (speed, "peak_memory") if key in keys]
    more = [key for key in keys if key not in shown]
    all_charts = [_chart(runs, key, more=key in more) for key in (*shown, *more)]
    return [chart for chart in all_charts if chart["curves"] or chart["notes"]]


def _keys(runs: Sequence[ReportedRun]) -> list[str]:
    """Metrics of all runs, losses first; a validation metric only if no training metric has its name."""
    known = dict.fromkeys(key for run in runs for key in run.curve.columns if key not in POSITIONS)
    keys = [key for key in known if key.removeprefix(_VALIDATION) not in known or not key.startswith(_VALIDATION)]
    return sorted(keys, key=lambda key: (key != "loss", not key.endswith("loss"), not key.endswith("accuracy")))


def _group(key: str) -> str:
    (tag,) = tagged({key: 0.0})
    return tag.partition("/")[0]


def _chart(runs: Sequence[ReportedRun], key: str, *, more: bool) -> dict[str, Any]:
    unit, factor = plotting.scale_of(key)
    curves, notes = [], []
    for number, run in enumerate(runs):
        curve: dict[str, Any] = {"run": number}
        for name, into in ((key, curve), (_VALIDATION + key, curve.setdefault("validation", {}))):
            if name in run.curve.columns:
                into.update(_points(run.curve.values(name), smoothed=name == key and not key.startswith(_VALIDATION)))
                notes += [f"{run.name}: {note}" for note in _notes(run.curve.values(name), name)]
        if curve.get("steps") or curve["validation"]:
            curves.append(curve)
    return {
        "key": key, "title": _title(key), "unit": unit, "factor": factor, "more": more, "curves": curves,
        "notes": notes,
    }  # fmt: skip


def _title(key: str) -> str:
    return "validation " * key.startswith(_VALIDATION) + plotting.label_of(key.removeprefix(_VALIDATION))


def _points(values: Mapping[int, float], *, smoothed: bool) -> dict[str, Any]:
    steps = sorted(values)
    numbers = [values[step] for step in steps]
    window = plotting.window_of(len(steps)) if smoothed else 1
    chosen = list(thinned(numbers))
    points: dict[str, Any] = {
        "steps": [steps[index] for index in chosen],
        "values": [numbers[index] if math.isfinite(numbers[index]) else None for index in chosen],
    }
    if window > 1:
        means = plotting.smooth(numbers, window)
        points |= {"window": window}
        points |= {"smooth": [float(f"{means[i]:.6g}") if math.isfinite(means[i]) else None for i in chosen]}
    return points


def thinned(values: Sequence[float], limit: int = MAX_POINTS) -> Iterator[int]:
    """Yield the indices of the points to draw: all, or the lowest and highest of each stretch, and both ends.

    The first value of a stretch that is not finite is kept, too.
    """
    if len(values) <= limit:
        yield from range(len(values))
        return
    count = limit // 2 - 1
    chosen = {0, len(values) - 1}
    for number in range(count):
        stretch = range(number * len(values) // count, (number + 1) * len(values) // count)
        broken = [index for index in stretch if not math.isfinite(values[index])]
        chosen |= set(broken[:1])
        finite = [index for index in stretch if math.isfinite(values[index])]
        if finite:
            chosen |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
    yield from sorted(chosen)


def _notes(values: Mapping[int, float], name: str) -> Iterator[str]:
    broken = [step for step, value in values.items() if not math.isfinite(value)]
    title = _title(name)
    if broken:
        yield f"{len(broken):,} of {len(values):,} values of {title} are not finite, first at step {min(broken):,}"
    if len(values) > MAX_POINTS:
        yield f"{len(values):,} values of {title}, of which the lowest and highest of each stretch are drawn"
