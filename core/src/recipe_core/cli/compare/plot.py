"""The curves of a comparison as a picture; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipe_core.cli.compare import picture
from recipe_core.cli.compare.compare import Comparison
from recipe_core.train.metrics import plotting

MAKER = "recipe compare"


def draw(comparison: Comparison, path: Path) -> None:
    """Draw the metric of every run over its steps, smoothed over faint raw values, and its validation as points.

    Raises:
        ConfigError: see :func:`picture.new_figure`.
        DiskError: ``path`` cannot be written.
    """
    figure = picture.new_figure(path, MAKER, (10, 4.8), ", or say --no-png")
    fill(figure, comparison)
    picture.save(figure, path, MAKER)


def fill(figure: Any, comparison: Comparison) -> None:
    """Draw ``comparison`` into a matplotlib figure."""
    axes, (unit, factor), entries = figure.add_subplot(), plotting.scale_of(comparison.metric), []
    for number, (name, curve) in enumerate(zip(comparison.names, comparison.curves, strict=True)):
        # so that the first shows below the others
        (colour, dashes), width = (
            plotting.style_of(number),
            1.4 if number else 2.4,
        )
        training = {step: factor * value for step, value in curve.values(comparison.metric).items()}
        entries.append((plotting.draw_curve(axes, training, colour, dashes, width=width), name))
        if values := curve.values(f"val_{comparison.metric}"):
            validation = {step: factor * value for step, value in values.items()}
            (line,) = axes.plot(
                list(validation), list(validation.values()), "o", color=colour, markersize=5, markeredgecolor="white"
            )
            last = validation[max(validation)]
            entries.append((line, f"   validation, {last:.4g}{unit and f' {unit}'} at the end"))
    plotting.finish(axes, _title(comparison), plotting.label_of(comparison.metric))
    plotting.add_legend(figure, entries)


def _title(comparison: Comparison) -> str:
    window = max(plotting.window_of(len(curve.values(comparison.metric))) for curve in comparison.curves)
    runs = plotting.shortened(comparison.names[0]) if len(comparison.names) == 1 else f"{len(comparison.names)} runs"
    note = f" (mean of up to {window} logged steps over faint raw values)" if window > 1 else ""
    return f"{comparison.metric.replace('_', ' ').capitalize()} of {runs}{note}"
