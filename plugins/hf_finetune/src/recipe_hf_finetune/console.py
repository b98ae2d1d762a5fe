"""A row of metrics as a line of the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core import Job

_FORMS = (("loss", ".4f"), ("lr", ".2e"), ("grad_norm", ".3f"), ("samples_per_second", ",.1f"))


def line(row: Mapping[str, Any], job: Job) -> str:
    """Step, epoch and loss; behind them what an evaluation found."""
    parts = [f"step {row['step']}/{job.train.steps}"]
    if "epoch" in row:
        parts.append(f"epoch {row['epoch']:.2f}")
    parts += [f"{name.replace('_', ' ')} {row[name]:{form}}" for name, form in _FORMS if row.get(name) is not None]
    parts += [
        f"validation {name.removeprefix('val_').replace('_', ' ')} {value:.4f}"
        for name, value in row.items()
        if name.startswith("val_") and value is not None
    ]
    return " | ".join(parts)
