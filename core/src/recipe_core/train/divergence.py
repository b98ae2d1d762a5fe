"""Steps that are not applied because they diverge: ``train.on_divergence`` and ``train.spike_sigma``.

A step is judged by its loss and its gradient norm, before the optimizer takes it. Reading them makes the host wait for
the device in each step, which the default (``stop``) does not do.
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

from recipe_core.checkpoint.retention import Trend
from recipe_core.checkpoint.store import Checkpoints
from recipe_core.engine.protocol import Engine
from recipe_core.errors import DivergedError
from recipe_core.hooks.train import Train, due
from recipe_core.train.metrics.curves import METRICS, Row, scan

WINDOW = 100
"""Logged gradient norms from which mean and standard deviation are computed."""
ENOUGH = 20
"""Logged gradient norms before ``spike_sigma`` is applied."""
MOST_IN_A_ROW = 10
"""Steps that are skipped one after the other, at most: a run that goes on skipping learns nothing."""
MOST_RETURNS = 3
"""Times that a run goes back to the same checkpoint."""


def not_finite(step: int, what: str, way_out: str) -> DivergedError:
    """The error of a step whose numbers are ``what``: "the loss is nan"."""
    return DivergedError(f"step {step}: {what}, which is not finite. Nothing was saved since; {way_out}")


class RollbackError(DivergedError):
    """``step`` diverged, and the run is to continue from an earlier checkpoint, behind ``consumed_samples``."""

    def __init__(self, text: str, step: int, consumed_samples: int) -> None:
        super().__init__(text)
        self.step, self.consumed_samples = step, consumed_samples


@dataclass
class Returns:
    """The times that a run went back to an earlier checkpoint."""

    consumed_samples: int = 0
    """The run continues with the samples after these."""
    _reason: str = ""
    _step: int = 0
    _targets: list[int] = field(default_factory=list)

    def note(self, error: RollbackError) -> None:
        """Note why the run goes back, and behind which samples it continues."""
        self.consumed_samples, self._step, self._reason = error.consumed_samples, error.step, str(error)

    def go_back(self, checkpoints: Checkpoints, out: Path) -> None:
        """Have the run continue from the last checkpoint before the loss rose; nothing unless it is to go back.

        Raises:
            DivergedError: there is no good checkpoint, or going back to it did not help.
        """
        if not self._reason:
            return
        reason, self._reason = self._reason, ""
        trend = Trend()
        for row in scan(out / METRICS) if checkpoints.engine.rank == 0 else ():
            trend.add(row["step"], row.get("loss"))
        step = checkpoints.sound_step(trend)
        if step is None:
            raise DivergedError(f"{reason}; no checkpoint is good: {checkpoints.way_out(self._step, trend)}")
        checkpoints.drop_after(step)  # they are finite, and of no use
        self._targets.append(step)
        if self._targets.count(step) > MOST_RETURNS:
            raise DivergedError(
                f"{reason}; the run went back to step {step:,} {MOST_RETURNS} times, so it is not the data; "
                f"{checkpoints.way_out(self._step, trend)}"
            )
        if checkpoints.engine.rank == 0:
            checkpoints.warn(f"{reason}; back to step {step:,}, past sample {self.consumed_samples - 1:,}")


@dataclass
class Guard:
    """Judges steps of a run whose ``train.on_divergence`` is ``skip`` or ``rollback``.

    What it compares with are the logged norms of steps that ``log_every`` makes due, so that a run that was stopped and
    continued judges as one that was not.
    """

    train: Train
    engine: Engine
    way_out: Callable[[int], str]
    """Advice for a run that ends at a step; a collective."""
    skipped: list[tuple[int, int]] = field(default_factory=list)
    """First sample, and the one after the last, of the steps skipped since the last row."""
    _norms: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @classmethod
    def of(cls, train: Train, engine: Engine, out: Path, step: int, way_out: Callable[[int], str]) -> Guard:
        """The guard of a run that continues after ``step``, with the norms that rank 0 finds in its metrics."""
        guard = cls(train, engine, way_out)
        rows = (row for row in scan(out / METRICS) if row["step"] <= step) if step else ()
        guard.follow(engine.broadcast(list(deque(rows, maxlen=WINDOW * train.log_every))))
        return guard

    def follow(self, rows: Iterable[Row]) -> None:
        """Note the gradient norms of logged rows."""
        for row in rows:
            norm = row.get("grad_norm")
            if norm is not None and due(row["step"], self.train.log_every):
                self._norms.append(norm)

    def problem(self, norm: Tensor, loss: Tensor) -> str:
        """The reason why a step is not to be applied; empty where it is. A collective, with one verdict for all ranks.

        Args:
            norm: the gradient norm, which is the same on all ranks.
            loss: of this rank's micro batches.
        """
        pair = torch.stack([norm.detach().float(), loss.detach().float().to(norm.device)])
        value, own_loss = (float(number) for number in self.engine.read(pair))
        if self.engine.any(not math.isfinite(own_loss)):
            return f"the loss is {own_loss}" if not math.isfinite(own_loss) else "the loss of a rank is not finite"
        return self._too_large(value)

    def _too_large(self, value: float) -> str:
        if not math.isfinite(value):
            return f"the gradient norm is {value}"
        if not self.train.spike_sigma or len(self._norms) < ENOUGH:
            return ""
        mean, deviation = statistics.fmean(self._norms), statistics.stdev(self._norms)
        if value <= mean + self.train.spike_sigma * deviation:
            return ""
        return (
            f"the gradient norm is {value:.4g}, more than {self.train.spike_sigma:g} standard deviations "
            f"({deviation:.4g}) above its mean of {mean:.4g}"
        )

    def refuse(self, reason: str, step: int, first: int, end: int) -> str:
        """Note that ``step``, with samples ``first`` to below ``end``, is not applied; return a line for the log.

        Raises:
            RollbackError: the run is to go back.
            DivergedError: too many steps were skipped in a row.
        """
        samples = f"samples {first:,} to {end - 1:,}"
        if self.train.on_divergence == "rollback":
            raise RollbackError(f"step {step:,}, {samples}: {reason}", step, end)
        self.skipped.append((first, end))
        if len(self.skipped) > MOST_IN_A_ROW:
            raise DivergedError(
                f"step {step:,}: {len(self.skipped)} steps in a row were skipped, the last with {samples}: {reason}. "
                f"It is not the data; {self.way_out(step)}"
            )
        return f"step {step:,}: {samples} skipped, {reason}"

    def columns(self) -> Row:
        """Columns about the steps that were skipped just before the row; empty where none was."""
        if not self.skipped:
            return {}
        skipped, self.skipped = self.skipped, []
        return {"skipped_steps": len(skipped), "skipped_from": skipped[0][0], "skipped_to": skipped[-1][1]}
