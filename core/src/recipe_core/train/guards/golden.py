"""Comparison of a run with a stored loss curve (``train.golden``). Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipe_core.errors import DataError, GoldenError
from recipe_core.hooks.train import Train
from recipe_core.train.metrics.curves import read_curve


@dataclass(frozen=True)
class Golden:
    """The expected losses, and the tolerance."""

    path: Path
    losses: Mapping[int, float]
    """By step, 1 to the end of the schedule."""
    tolerance: float
    """Relative to the expected loss."""

    def departure(self, last: int, losses: Sequence[float]) -> GoldenError | None:
        """An error for the first loss outside the tolerance; ``losses`` are those of the steps up to ``last``."""
        for step, loss in enumerate(losses, last - len(losses) + 1):
            expected = self.losses.get(step)
            if expected is not None and not within(loss, expected, self.tolerance):
                return GoldenError(
                    f"step {step}: the loss is {loss:.6g}, and {self.path} says {expected:.6g}: "
                    f"{relative_error(loss, expected):.3g} of it away, where train.golden_tolerance allows "
                    f"{self.tolerance:g}. The run ends here; what was saved is of earlier steps"
                )
        return None

    def announcement(self, done: int) -> str:
        """Line for the log with the number of steps after ``done`` that are compared."""
        left = sum(step > done for step in self.losses)
        if not left:
            return f"golden: nothing is left to compare, {self.path} ends at step {max(self.losses):,}"
        return f"golden: {left:,} steps are held to {self.path} within {self.tolerance:g} of its losses"


def within(loss: float, expected: float, tolerance: float) -> bool:
    """True if the relative error of ``loss`` is at most ``tolerance``; False if a value is not finite."""
    return relative_error(loss, expected) <= tolerance


def relative_error(loss: float, expected: float) -> float:
    """``|loss - expected| / |expected|``; infinite if one of the two is not finite."""
    if loss == expected:
        return 0.0
    if not (math.isfinite(loss) and math.isfinite(expected) and expected):
        return math.inf
    return abs(loss - expected) / abs(expected)


def load_golden(train: Train) -> Golden | None:
    """Load the curve that ``train.golden`` names; None if it names none.

    Raises:
        DataError: it cannot be read, or has no step that this run makes.
    """
    if train.golden is None:
        return None
    path = Path(train.golden)
    try:
        stored = read_curve(path).values("loss")
    except DataError as error:
        raise DataError(f"train.golden: {error}") from error
    losses = {step: loss for step, loss in stored.items() if 1 <= step <= train.steps}
    if not losses:
        has = f"it has steps {min(stored):,} to {max(stored):,}" if stored else "none of its lines has a loss"
        raise DataError(
            f"train.golden: {path}: nothing to compare with the steps 1 to {train.steps:,} of this run; {has}"
        )
    return Golden(path, losses, train.golden_tolerance)
