"""Curves of runs as data for the page: which charts there are, and the points of each. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.cli.compare.report.runs import ReportedRun
from recipe_core.train.metrics import plotting
from recipe_core.train.metrics.tracker import POSITIONS, tagged

MOST_POINTS = 4000
"""Points of a curve at most: a page of some megabytes that a browser draws at once."""
_DASHES = dict(zip(plotting.DASHES, ("solid", "dash", "dot", "dashdot"), strict=True))
_VALIDATION = "val_"
_SPEEDS = ("mfu", "sequences_per_second", "tokens_per_second", "real_tokens_per_second")
"""Speeds; of those that most runs measured, the last one is shown first."""


def style_of(number: int) -> dict[str, str]:
    """Colour and dashes of a run, as plotly calls them."""
    colour, dashes = plotting.style_of(number)
    return {"colour": colour, "dash": _DASHES[dashes]}


def charts(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """The charts of all runs: those that a reader looks for first, then those with ``more`` set.

    A curve has ``run``, ``steps`` and ``values``, exactly as in metrics.jsonl, and null for what is not finite; where
    it is smoothed, also ``smooth``; and where it was evaluated, ``validation`` with steps and values of its own.
    """
    keys = _keys(runs)
    counts = {key: sum(key in run.curve.columns for run in runs) for key in _SPEEDS}
    speed = max(_SPEEDS, key=lambda key: (counts[key], _SPEEDS.index(key)))
    shown = [key for key in keys if _group(key) in ("train", "valid") and key != "epoch"]
    shown += [key for key in (speed, "peak_memory") if key in keys]
    more = [key for key in keys if key not in shown]
    found = [_chart(runs, key, more=key in more) for key in (*shown, *more)]
    return [chart for chart in found if chart["curves"] or chart["notes"]]


def _keys(runs: Sequence[ReportedRun]) -> list[str]:
    """The metrics that any run has, losses first; one of validation only where none of training has its name."""
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
    """The name of a metric, with its unit."""
    return "validation " * key.startswith(_VALIDATION) + plotting.label_of(key.removeprefix(_VALIDATION))


def _points(values: Mapping[int, float], *, smoothed: bool) -> dict[str, Any]:
    steps = sorted(values)
    numbers = [values[step] for step in steps]
    window = plotting.window_of(len(steps)) if smoothed else 1
    chosen = list(thinned(numbers))
    found: dict[str, Any] = {
        "steps": [steps[index] for index in chosen],
        "values": [numbers[index] if math.isfinite(numbers[index]) else None for index in chosen],
    }
    if window > 1:
        means = plotting.smooth(numbers, window)
        found |= {"window": window}
        found |= {"smooth": [float(f"{means[i]:.6g}") if math.isfinite(means[i]) else None for i in chosen]}
    return found


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> Iterator[int]:
    """The points that are shown, by their index: all, or the lowest and highest of each stretch, and both ends.

    A value that is not finite stays, before any other, in its stretch.
    """
    if len(values) <= most:
        yield from range(len(values))
        return
    count = most // 2 - 1
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
    what = _title(name)
    if broken:
        yield f"{len(broken):,} of {len(values):,} values of {what} are not finite, first at step {min(broken):,}"
    if len(values) > MOST_POINTS:
        yield f"{len(values):,} values of {what}, of which the lowest and highest of each stretch are drawn"
