"""A comparison of runs as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import click

from recipe_core.cli.compare.compare import SPEEDS, Comparison, ends, speeds

SHOWN = 10
"""Steps in the table of values."""
_SPEEDS = dict(zip(SPEEDS, ("sequences/s", "real tokens/s", "tokens/s", "MFU"), strict=True))


def text(found: Comparison) -> str:
    """Everything that :func:`recipe_core.cli.compare.compare.compare` found, a block each."""
    blocks = [*_runs(found), *_departures(found), *_values(found), *_speed(found), *_settings(found)]
    return "\n\n".join(blocks)


def verdict(found: Comparison) -> str:
    """Which runs are farther off than the tolerance; empty where none is."""
    return "\n".join(
        f"{name}: {found.metric} departs from {found.names[0]}'s by more than {found.tolerance:g} of it, "
        f"first at step {far.beyond.step:,} ({far.beyond.first:.6g}, {far.beyond.other:.6g})"
        for name, far in zip(found.names[1:], found.departures, strict=True)
        if far.beyond is not None
    )


def _runs(found: Comparison) -> Iterator[str]:
    validated = f"val_{found.metric}"
    rows = [["run", "steps", "first", "last", validated]]
    for name, curve in zip(found.names, found.curves, strict=True):
        known = ends(curve, found.metric)
        span = f"{_number(known[f'first_{validated}'])} to {_number(known[validated])}" if validated in known else "-"
        first, last = known[f"first_{found.metric}"], known[found.metric]
        rows.append([name, f"{len(curve.values(found.metric)):,}", _number(first), _number(last), span])
    yield _block(found.metric, rows)


def _departures(found: Comparison) -> Iterator[str]:
    if not found.departures:
        return
    rows = [["run", "common steps", "at step", found.names[0], "run's", "difference", "relative"]]
    for name, departure in zip(found.names[1:], found.departures, strict=True):
        far = departure.largest
        values = [_number(far.first), _number(far.other), f"{far.absolute:+.3g}", f"{far.relative:.3g}"]
        rows.append([name, f"{departure.steps:,}", f"{far.step:,}", *values])
    yield _block(f"Largest departure from {found.names[0]}", rows)


def _values(found: Comparison) -> Iterator[str]:
    """The metric of all runs side by side, at some of the steps that they have in common."""
    curves = [curve.values(found.metric) for curve in found.curves]
    common = sorted(set(curves[0]).intersection(*curves[1:]))
    if not common:
        return
    count = min(SHOWN, len(common))
    steps = [common[round(i * (len(common) - 1) / max(1, count - 1))] for i in range(count)]
    rows = [["step", *found.names], *([f"{step:,}", *(_number(curve[step]) for curve in curves)] for step in steps)]
    yield _block("Values", rows)


def _speed(found: Comparison) -> Iterator[str]:
    measured = [speeds(curve) for curve in found.curves]
    keys = [key for key in SPEEDS if any(key in speed for speed in measured)]
    if not keys:
        return
    rows = [["run", *(_SPEEDS[key] for key in keys), f"times {found.names[0]}"]]
    for name, speed in zip(found.names, measured, strict=True):
        shared = next((key for key in keys if key in speed and key in measured[0]), None)
        ratio = f"{speed[shared] / measured[0][shared]:.2f}" if shared else "-"
        rows.append([name, *(_speed_of(key, speed.get(key)) for key in keys), ratio])
    yield _block("Speed (median)", rows)


def _speed_of(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if key == "mfu" else f"{value:,.1f}"


def _settings(found: Comparison) -> Iterator[str]:
    if found.settings:
        rows = [["setting", *found.names]]
        rows += [[key, *map(_setting, values)] for key, values in found.settings.items()]
        yield _block("Settings that differ", rows)


def _setting(value: object) -> str:
    """A value as it is written on the line."""
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: float | None) -> str:
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4f}"


def _block(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A heading and a table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  " + "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    lines[0] = click.style(lines[0], dim=True)
    return "\n".join([click.style(title, bold=True), *(line.rstrip() for line in lines)])
