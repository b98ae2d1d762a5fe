"""The confusion matrix and the learning curves as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recipe_core import atomic_file
from recipe_core.train.metrics.curves import Row

_MOST_LABELS = 30
"""Of more labels, the numbers could not be read."""


def draw_confusion(table: NDArray[np.int64], labels: Sequence[str], path: Path) -> None:
    """Draw how many samples of each label (row) were given each label (column), coloured by their share of the row."""
    from matplotlib.figure import Figure

    size = min(12.0, 2.5 + 0.9 * len(labels))
    figure = Figure(figsize=(size + 0.6, size), dpi=110, layout="tight")
    axes = figure.add_subplot()
    shares = table / np.maximum(1, table.sum(1, keepdims=True))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(labels) <= _MOST_LABELS:
        axes.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
        axes.set_yticks(range(len(labels)), labels)
        for (row, column), count in np.ndenumerate(table):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    with atomic_file(path) as part:
        figure.savefig(part, format="png")


def draw_curves(legs: Mapping[str, Sequence[Row]], metric: str, path: Path) -> None:
    """Draw the loss of each leg over its steps, and its ``metric`` on the validation split beside it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=110, layout="tight")
    left, right = figure.subplots(1, 2)
    for number, (name, rows) in enumerate(legs.items()):
        for axes, key, form in ((left, "loss", "-"), (right, f"val_{metric}", "o-")):
            points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], form, color=f"C{number % 10}", label=name)
    left.set_ylabel("training loss")
    right.set_ylabel(f"validation {metric}")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    with atomic_file(path) as part:
        figure.savefig(part, format="png")
