"""A comparison of runs as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from recipe_core.cli.compare.compare import SPEEDS, Comparison, ends, number_text, speed_text, speeds

MAX_ROWS = 10
"""Steps in the table of values."""


def text(comparison: Comparison) -> str:
    """Format a comparison, a block per topic."""
    blocks = [
        *_runs(comparison),
        *_departures(comparison),
        *_values(comparison),
        *_speed(comparison),
        *_settings(comparison),
    ]
    return "\n\n".join(blocks)


def verdict(comparison: Comparison) -> str:
    """Name the runs beyond the tolerance; empty if there is none."""
    return "\n".join(
        f"{name}: {comparison.metric} departs from {comparison.names[0]}'s by more than {comparison.tolerance:g} of "
        f"it, first at step {departure.beyond.step:,} ({departure.beyond.first:.6g}, {departure.beyond.other:.6g})"
        for name, departure in zip(comparison.names[1:], comparison.departures, strict=True)
        if departure.beyond is not None
    )


def _runs(comparison: Comparison) -> Iterator[str]:
    validated = f"val_{comparison.metric}"
    rows = [["run", "steps", "first", "last", validated]]
    for name, curve in zip(comparison.names, comparison.curves, strict=True):
        end_values = ends(curve, comparison.metric)
        span = (
            f"{number_text(end_values[f'first_{validated}'])} to {number_text(end_values[validated])}"
            if validated in end_values
            else "-"
        )
        first, last = end_values[f"first_{comparison.metric}"], end_values[comparison.metric]
        rows.append([name, f"{len(curve.values(comparison.metric)):,}", number_text(first), number_text(last), span])
    yield _block(comparison.metric, rows)


def _departures(comparison: Comparison) -> Iterator[str]:
    if not comparison.departures:
        return
    rows = [["run", "common steps", "at step", comparison.names[0], "run's", "difference", "relative"]]
    for name, departure in zip(comparison.names[1:], comparison.departures, strict=True):
        largest = departure.largest
        values = [
            number_text(largest.first),
            number_text(largest.other),
            f"{largest.absolute:+.3g}",
            f"{largest.relative:.3g}",
        ]
        rows.append([name, f"{departure.steps:,}", f"{largest.step:,}", *values])
    yield _block(f"Largest departure from {comparison.names[0]}", rows)


def _values(comparison: Comparison) -> Iterator[str]:
    curves = [curve.values(comparison.metric) for curve in comparison.curves]
    common = sorted(set(curves[0]).intersection(*curves[1:]))
    if not common:
        return
    count = min(MAX_ROWS, len(common))
    steps = [common[round(i * (len(common) - 1) / max(1, count - 1))] for i in range(count)]
    rows = [
        ["step", *comparison.names],
        *([f"{step:,}", *(number_text(curve[step]) for curve in curves)] for step in steps),
    ]
    yield _block("Values", rows)


def _speed(comparison: Comparison) -> Iterator[str]:
    measured = [speeds(curve) for curve in comparison.curves]
    keys = [key for key in SPEEDS if any(key in speed for speed in measured)]
    if not keys:
        return
    rows = [["run", *(SPEEDS[key] for key in keys), f"times {comparison.names[0]}"]]
    for name, speed in zip(comparison.names, measured, strict=True):
        shared = next((key for key in keys if key in speed and key in measured[0]), None)
        ratio = f"{speed[shared] / measured[0][shared]:.2f}" if shared else "-"
        rows.append([name, *(speed_text(key, speed[key]) if key in speed else "-" for key in keys), ratio])
    yield _block("Speed (median)", rows)


def _settings(comparison: Comparison) -> Iterator[str]:
    if comparison.settings:
        rows = [["setting", *comparison.names]]
        rows += [[key, *map(_setting, values)] for key, values in comparison.settings.items()]
        yield _block("Settings that differ", rows)


def _setting(value: object) -> str:
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _block(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A heading and a table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  " + "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    lines[0] = click.style(lines[0], dim=True)
    return "\n".join([click.style(title, bold=True), *(line.rstrip() for line in lines)])
