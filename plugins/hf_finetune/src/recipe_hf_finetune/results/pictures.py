"""The confusion matrix and the learning curves as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_core import atomic_file
from recipe_core.train.metrics import plotting
from recipe_core.train.metrics.curves import Row

_MOST_LABELS = 30
"""With more labels, no numbers are written: they would be unreadable."""
_MOST_COUNTS = 12
"""With more labels, the cells hold percentages only."""


def draw_confusion(table: NDArray[np.int64], labels: Sequence[str], path: Path) -> None:
    """Draw the confusion matrix (rows are true labels), coloured by the share of the row."""
    from matplotlib.figure import Figure

    size = min(14.0, 2.8 + 0.9 * len(labels))
    figure = Figure(figsize=(size + 1.4, size), dpi=110, layout="constrained")
    fill_confusion(figure, table, labels)
    with atomic_file(path) as part:
        figure.savefig(part, format="png")


def fill_confusion(figure: Any, table: NDArray[np.int64], labels: Sequence[str]) -> None:
    """Draw the confusion matrix into a matplotlib figure: each cell has the percentage of its row, and the count."""
    from matplotlib.ticker import PercentFormatter

    axes, rows = figure.add_subplot(), table.sum(1, keepdims=True)
    shares = table / np.maximum(1, rows)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, label="share of the true label's samples", format=PercentFormatter(1), shrink=0.8)
    if len(labels) <= _MOST_LABELS:
        counted = len(labels) <= _MOST_COUNTS
        form = ".1%" if counted else ".0%"
        names = [plotting.shortened(label) for label in labels]
        axes.set_xticks(range(len(labels)), names, rotation=30, ha="right", parse_math=False)
        axes.set_yticks(range(len(labels)), names, parse_math=False)
        for (row, column), count in np.ndenumerate(table):
            share = f"{shares[row, column]:{form}}" if rows[row, 0] else "-"  # no sample has this label
            axes.text(
                column, row, f"{share}\n{count:,}" if counted else share,
                ha="center", va="center", fontsize=9, color="white" if shares[row, column] > 0.5 else "black",
            )  # fmt: skip
    samples = int(table.sum())
    right = f", {np.trace(table) / samples:.1%} right" if samples else ""
    axes.set_title(f"Confusion matrix, validation\n{samples:,} samples{right}", loc="left", fontsize=11)
    axes.set_xlabel("predicted label")
    axes.set_ylabel("true label")


def draw_curves(seed_runs: Mapping[str, Sequence[Row]], metric: str, path: Path) -> None:
    """Draw, for each fine-tuning by name, the loss and the validation ``metric`` over the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.4), dpi=110, layout="constrained")
    fill_curves(figure, seed_runs, metric)
    with atomic_file(path) as part:
        figure.savefig(part, format="png")


def fill_curves(figure: Any, seed_runs: Mapping[str, Sequence[Row]], metric: str) -> None:
    """Draw the curves into a matplotlib figure."""
    left, right = figure.subplots(1, 2)
    entries = []
    for number, (name, rows) in enumerate(seed_runs.items()):
        colour, dashes = plotting.style_of(number)
        loss, validation = _points(rows, "loss"), _points(rows, f"val_{metric}")
        entries.append((plotting.draw_curve(left, loss, colour, dashes), name))
        right.plot(list(validation), list(validation.values()), dashes, marker="o", markersize=4, color=colour)
    window = max((plotting.window_of(len(_points(rows, "loss"))) for rows in seed_runs.values()), default=1)
    note = f" (mean of up to {window} logged steps)" if window > 1 else ""
    plotting.finish(left, f"Training loss{note}", plotting.label_of("loss"))
    plotting.finish(right, f"{metric.capitalize()} on the validation split", plotting.label_of(metric))
    plotting.add_legend(figure, entries)


def _points(rows: Sequence[Row], key: str) -> dict[int, float]:
    factor = plotting.scale_of(key)[1]
    return {row["step"]: factor * row[key] for row in rows if isinstance(row.get(key), (int, float))}
