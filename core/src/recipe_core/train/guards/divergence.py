"""Steps that are not applied because they diverge: ``train.on_divergence`` and ``train.spike_sigma``.

A step is judged by its loss and gradient norm, before the optimizer's update. Reading them synchronises with the device
in each step, which the default (``stop``) does not do.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from recipe_core.checkpoint.saving.retention import Trend
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.engine.protocol import Engine
from recipe_core.errors import DivergedError
from recipe_core.hooks.train import Train, due
from recipe_core.train.metrics.curves import METRICS, Row, scan

WINDOW = 100
"""Logged gradient norms from which mean and standard deviation are computed."""
LEAST_NORMS = 20
"""Logged gradient norms before ``spike_sigma`` is applied."""
MOST_IN_A_ROW = 10
"""Most consecutive steps that are skipped."""
MOST_ROLLBACKS = 3
"""Most rollbacks to the same checkpoint."""


def not_finite_error(step: int, finding: str, advice: str) -> DivergedError:
    """The error for a step with a ``finding`` such as "the loss is nan"."""
    return DivergedError(f"step {step}: {finding}, which is not finite. Nothing was saved since; {advice}")


def not_finite_step(step: int, loss: float, norm: float, advice: str) -> DivergedError:
    """The error of a step whose loss or gradient norm is not finite."""
    return not_finite_error(step, f"the loss is {loss} and the gradient norm {norm}", advice)


class RollbackError(DivergedError):
    """``step`` diverged: continue from an earlier checkpoint, with the samples after ``consumed_samples``."""

    def __init__(self, text: str, step: int, consumed_samples: int) -> None:
        super().__init__(text)
        self.step, self.consumed_samples = step, consumed_samples


@dataclass
class Rollbacks:
    """The rollbacks of a run to earlier checkpoints."""

    consumed_samples: int = 0
    """The run continues with the samples after these."""
    _reason: str = ""
    _step: int = 0
    _targets: list[int] = field(default_factory=list)

    def note(self, error: RollbackError) -> None:
        """Record the reason of a rollback, and the samples after which the run continues."""
        self.consumed_samples, self._step, self._reason = error.consumed_samples, error.step, str(error)

    def roll_back(self, checkpoints: Checkpoints, out: Path) -> None:
        """Select the last checkpoint before the loss rose; does nothing without a recorded error.

        Raises:
            DivergedError: there is no good checkpoint, or rollbacks to it did not help.
        """
        if not self._reason:
            return
        reason, self._reason = self._reason, ""
        trend = Trend()
        for row in scan(out / METRICS) if checkpoints.engine.rank == 0 else ():
            trend.add(row["step"], row.get("loss"))
        step = checkpoints.good_step(trend)
        if step is None:
            raise DivergedError(f"{reason}; no checkpoint is good: {checkpoints.recovery_advice(self._step, trend)}")
        checkpoints.drop_after(step)  # finite, but after the divergence began
        self._targets.append(step)
        if self._targets.count(step) > MOST_ROLLBACKS:
            raise DivergedError(
                f"{reason}; the run went back to step {step:,} {MOST_ROLLBACKS} times, so it is not the data; "
                f"{checkpoints.recovery_advice(self._step, trend)}"
            )
        if checkpoints.engine.rank == 0:
            checkpoints.warn(f"{reason}; back to step {step:,}, past sample {self.consumed_samples - 1:,}")


@dataclass
class Guard:
    """Judges steps of a run whose ``train.on_divergence`` is ``skip`` or ``rollback``.

    The reference is the logged norms at multiples of ``log_every``, so that a run that was stopped and continued judges
    as an uninterrupted one.
    """

    train: Train
    engine: Engine
    advice: Callable[[int], str]
    """Advice in the message of a run that ends at a step; a collective."""
    skipped: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of samples, end excluded, of the steps skipped since the last row."""
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @classmethod
    def of(cls, train: Train, engine: Engine, out: Path, step: int, advice: Callable[[int], str]) -> Guard | None:
        """The guard of a run that continues after ``step``, with the norms in the metrics of rank 0; a collective.

        None where ``train.on_divergence`` is ``stop``.
        """
        if train.on_divergence == "stop":
            return None
        guard = cls(train, engine, advice)
        rows = (row for row in scan(out / METRICS) if row["step"] <= step) if step else ()
        guard.add_norms(engine.broadcast(list(deque(rows, maxlen=WINDOW * train.log_every))))
        return guard

    def add_norms(self, rows: Iterable[Row]) -> None:
        """Add the gradient norms of logged rows to the reference."""
        for row in rows:
            norm = row.get("grad_norm")
            if norm is not None and due(row["step"], self.train.log_every):
                self._norms.append(norm)

    def problem(self, norm: Tensor, loss: Tensor) -> str:
        """The reason to discard a step; empty if it is to be applied. A collective: all ranks decide alike.

        Args:
            norm: gradient norm, the same on all ranks.
            loss: loss of this rank's micro batches.
        """
        pair = torch.stack([norm.detach().float(), loss.detach().float().to(norm.device)])
        value, own_loss = (float(number) for number in self.engine.read(pair))
        if self.engine.any(not math.isfinite(own_loss)):
            return f"the loss is {own_loss}" if not math.isfinite(own_loss) else "the loss of a rank is not finite"
        return self._too_large(value)

    def _too_large(self, value: float) -> str:
        if not math.isfinite(value):
            return f"the gradient norm is {value}"
        if not self.train.spike_sigma or len(self._norms) < LEAST_NORMS:
            return ""
        mean, deviation = statistics.fmean(self._norms), statistics.stdev(self._norms)
        if value <= mean + self.train.spike_sigma * deviation:
            return ""
        return (
            f"the gradient norm is {value:.4g}, more than {self.train.spike_sigma:g} standard deviations "
            f"({deviation:.4g}) above its mean of {mean:.4g}"
        )

    def skip(self, reason: str, step: int, first: int, end: int) -> str:
        """Record that ``step``, with samples ``first`` to below ``end``, is skipped; return a line for the log.

        Raises:
            RollbackError: ``train.on_divergence`` is ``rollback``.
            DivergedError: too many steps were skipped in a row.
        """
        samples = f"samples {first:,} to {end - 1:,}"
        if self.train.on_divergence == "rollback":
            raise RollbackError(f"step {step:,}, {samples}: {reason}", step, end)
        self.skipped.append((first, end))
        if len(self.skipped) > MOST_IN_A_ROW:
            raise DivergedError(
                f"step {step:,}: {len(self.skipped)} steps in a row were skipped, the last with {samples}: {reason}. "
                f"It is not the data; {self.advice(step)}"
            )
        return f"step {step:,}: {samples} skipped, {reason}"

    def columns(self) -> Row:
        """Columns for the steps skipped since the last row; empty if there are none."""
        if not self.skipped:
            return {}
        skipped, self.skipped = self.skipped, []
        return {"skipped_steps": len(skipped), "skipped_from": skipped[0][0], "skipped_to": skipped[-1][1]}
