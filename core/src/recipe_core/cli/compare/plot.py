"""Curves of runs as a picture; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.cli.compare import picture
from recipe_core.cli.compare.compare import Comparison
from recipe_core.train.metrics import plotting

MAKER = "recipe compare"


def draw(found: Comparison, path: Path) -> None:
    """Draw the metric of every run over its steps, smoothed over faint raw values, and its validation as points.

    Raises:
        ConfigError: there is no matplotlib, or ``path`` is not for it; see :func:`picture.new_figure`.
        DiskError: ``path`` cannot be written.
    """
    figure = picture.new_figure(path, MAKER, (10, 4.8), ", or say --no-png")
    fill(figure, found)
    picture.save(figure, path, MAKER)


def fill(figure: Any, found: Comparison) -> None:
    """Draw ``found`` in a figure of matplotlib's."""
    axes, (unit, factor), entries = figure.add_subplot(), plotting.scale_of(found.metric), []
    for number, (name, curve) in enumerate(zip(found.names, found.curves, strict=True)):
        (colour, dashes), width = (
            plotting.style_of(number),
            1.4 if number else 2.4,
        )  # the first shines through under others
        training = {step: factor * value for step, value in curve.values(found.metric).items()}
        entries.append((plotting.draw_curve(axes, training, colour, dashes, width=width), name))
        if values := curve.values(f"val_{found.metric}"):
            validation = {step: factor * value for step, value in values.items()}
            (line,) = axes.plot(
                list(validation), list(validation.values()), "o", color=colour, markersize=5, markeredgecolor="white"
            )
            last = validation[max(validation)]
            entries.append((line, f"   validation, {last:.4g}{unit and f' {unit}'} at the end"))
    plotting.finish(axes, _title(found), plotting.label_of(found.metric))
    plotting.add_legend(figure, entries)


def _title(found: Comparison) -> str:
    window = max(plotting.window_of(len(curve.values(found.metric))) for curve in found.curves)
    runs = plotting.shortened(found.names[0]) if len(found.names) == 1 else f"{len(found.names)} runs"
    note = f" (mean of up to {window} logged steps over faint raw values)" if window > 1 else ""
    return f"{found.metric.replace('_', ' ').capitalize()} of {runs}{note}"
