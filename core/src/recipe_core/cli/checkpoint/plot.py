"""The results of ``recipe eval`` as a picture; needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe_core.cli.compare import picture
from recipe_core.train.metrics import plotting

MAKER = "recipe eval"
_COUNTS = ("tokens", "bytes", "samples")
"""Columns that count what the values are means over."""
Row = Mapping[str, Any]


def require(path: Path) -> None:
    """Check that a picture can be written, before anything is measured.

    Raises:
        ConfigError: matplotlib is not installed, or cannot write ``path``; or ``path`` holds another file.
    """
    picture.new_figure(path, MAKER, (1, 1))


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw each value of all checkpoints: over their steps if a run has several, else one row each.

    Raises:
        ConfigError: matplotlib is not installed, or cannot write ``path``; or ``path`` holds another file.
        DiskError: ``path`` cannot be written.
    """
    names = values_of(rows)
    across = min(3, len(names)) or 1
    down = -(-len(names) // across) or 1
    figure = picture.new_figure(path, MAKER, (3.6 * across + 2.6, (1.2 + 0.2 * min(len(rows), 12)) * down + 1.6))
    fill(figure, rows, names, (down, across))
    picture.save(figure, path, MAKER)


def values_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of the measured values: all numeric columns except the step and the counts."""
    known = dict.fromkeys(name for row in rows for name in row)
    return [
        name for name in known if name != "step" and name not in _COUNTS and any(_is_value(row, name) for row in rows)
    ]


def fill(figure: Any, rows: Sequence[Row], names: Sequence[str], grid: tuple[int, int]) -> None:
    """Draw the columns ``names`` of the rows, a panel each, into matplotlib's ``figure``."""
    by_step = _x_is_step(rows)
    series = _series(rows, by_step)
    labels = list(dict.fromkeys(str(row["checkpoint"]) for row in rows))
    shown: dict[str, Any] = {}
    for number, name in enumerate(names):
        axes, (_, factor) = figure.add_subplot(*grid, number + 1), plotting.scale_of(name)
        for count, (label, members) in enumerate(series.items()):
            points = [row for row in members if _is_value(row, name) and math.isfinite(row[name])]
            (colour, dashes), values = plotting.style_of(count), [factor * row[name] for row in points]
            positions = [row["step"] if by_step else labels.index(str(row["checkpoint"])) for row in points]
            line = dashes if by_step else ""
            (plotted,) = axes.plot(
                *((positions, values) if by_step else (values, positions)), linestyle=line, marker="o", color=colour
            )
            shown[label] = plotted
        plotting.finish(axes, plotting.label_of(name), "")
        if not by_step:
            _name_rows(axes, labels if number % grid[1] == 0 else None, len(labels))
    plotting.add_legend(figure, [(line, label) for label, line in shown.items()])


def _name_rows(axes: Any, labels: Sequence[str] | None, count: int) -> None:
    """One row per checkpoint, the first on top; tick labels only if ``labels`` are given."""
    from matplotlib.ticker import AutoLocator, ScalarFormatter

    axes.set_xlabel("")
    axes.xaxis.set_major_locator(AutoLocator())
    axes.xaxis.set_major_formatter(ScalarFormatter(useOffset=False))
    axes.set_yticks(range(count), [plotting.shortened(label) for label in labels] if labels else [""] * count)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.set_ylim(count - 0.5, -0.5)


def _x_is_step(rows: Sequence[Row]) -> bool:
    steps: dict[str, set[int | None]] = {}
    for row in rows:
        steps.setdefault(_run(row), set()).add(row["step"])
    return None not in set().union(*steps.values()) and any(len(values) > 1 for values in steps.values())


def _series(rows: Sequence[Row], by_step: bool) -> dict[str, list[Row]]:
    """Rows by label in the legend: one series per data set, and per run if the x axis is the step."""
    named = by_step and len({_run(row) for row in rows}) > 1
    series: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["step"]) if by_step else rows:
        counts = ", ".join(f"{row[name]:,} {name}" for name in _COUNTS if isinstance(row.get(name), int))
        data = f"{Path(str(row.get('data', ''))).name} ({counts})"
        series.setdefault(f"{_run(row)}: {data}" if named else data, []).append(row)
    return series


def _run(row: Row) -> str:
    """The run folder of a checkpoint, or the checkpoint itself."""
    path = Path(str(row["checkpoint"]))
    return path.parts[-3] if len(path.parts) > 2 and path.parent.name == "checkpoints" else path.name


def _is_value(row: Row, name: str) -> bool:
    return isinstance(row.get(name), (int, float)) and not isinstance(row[name], bool)
