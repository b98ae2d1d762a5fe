"""The rows of metrics of a run: measured, judged, and written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from recipe_core.errors import DivergedError, GoldenError
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.train.guards.divergence import Guard, not_finite_error, not_finite_step
from recipe_core.train.guards.golden import Golden
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.meter import Meter
from recipe_core.train.metrics.writer import Metrics
from recipe_core.train.start.resume import TrainingProgress


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Collects each step's values, and turns them into rows of metrics.

    Args:
        progress: the position of the run.
        meter: measures the steps.
        writer: writes rows; None on ranks other than 0.
        golden: loss curve to compare with.
        guard: judge of each step before its update; None where ``train.on_divergence`` is ``stop``.
        straggler_row: columns about the ranks' speed.
        recovery_advice: advice for a run that diverged at a step; a collective.
    """

    progress: TrainingProgress
    meter: Meter
    writer: Metrics | None
    golden: Golden | None
    guard: Guard | None
    straggler_row: Callable[[], Row]
    recovery_advice: Callable[[int], str]

    def step(self, values: dict[str, Tensor], norm: Tensor, rate: float, seconds: float, samples: int) -> None:
        """Record a step on the device; see :meth:`Meter.step`."""
        self.meter.step(values, norm, rate, seconds, samples)

    def read(self) -> Row:
        """The row of the last step; a collective that synchronises with the device.

        Raises:
            DivergedError: the loss or the gradient norm is not finite; the row is written.
            GoldenError: a loss deviates from the golden curve; the row is written.
        """
        with beat.during("reading the device"):
            reading = self.meter.read()
        row = self.position() | reading.row | self.straggler_row()
        if self.guard is not None:
            row |= self.guard.columns()
            self.guard.add_norms([row])
        departure = self.golden.departure(self.progress.step, reading.losses) if self.golden else None
        problem: DivergedError | GoldenError | None = departure or self._not_finite(row)
        if problem is not None:
            self.write(row)
            raise problem
        return row

    def _not_finite(self, row: Row) -> DivergedError | None:
        if math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]):
            return None
        return not_finite_step(row["step"], row["loss"], row["grad_norm"], self.recovery_advice(row["step"]))

    def position(self) -> Row:
        """The first columns of a row."""
        return {"step": self.progress.step, "consumed_samples": self.progress.consumed_samples}

    def write(self, row: Row) -> None:
        """Write a row, on rank 0."""
        if self.writer is not None:
            self.writer.write(row)

    def require_finite(self, name: str, loss: float) -> None:
        """Check a loss that was computed after the update of the last step.

        Raises:
            DivergedError: it is not finite.
        """
        if not math.isfinite(loss):
            step = self.progress.step
            raise not_finite_error(step, f"the {name} is {loss}", self.recovery_advice(step))

    @property
    def has_skipped(self) -> bool:
        """True if steps were skipped since the last row, which names their samples."""
        return self.guard is not None and bool(self.guard.skipped)
