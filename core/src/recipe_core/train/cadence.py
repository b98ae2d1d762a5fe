"""When a run logs, evaluates, saves and compares replicas: a function of settings and step. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from recipe_core.hooks.train import Train, due


@dataclass(frozen=True)
class Cadence:
    """The events after each step.

    Args:
        train: the settings.
        first_step: steps that were done when this invocation started.
        epoch_steps: where ``eval_every`` is 0, evaluate after each epoch, which has this many steps; 0: never.
    """

    train: Train
    first_step: int = 0
    epoch_steps: int = 0

    @property
    def end(self) -> int:
        """The last step of this invocation."""
        steps, stop_after = self.train.steps, self.train.stop_after
        return steps if stop_after is None else min(steps, self.first_step + stop_after)

    def evaluates(self, step: int) -> bool:
        """True if an evaluation is due after ``step``: at regular intervals, and at the end of the schedule."""
        every = self.train.eval_every or self.epoch_steps
        return every > 0 and (step % every == 0 or step == self.train.steps)

    def logs(self, step: int) -> bool:
        """True if a row of metrics is due after ``step``."""
        return step >= self.end or due(step, self.train.log_every)

    def saves(self, step: int) -> bool:
        """True if a checkpoint is due after ``step``, whatever the clock says."""
        return step >= self.end or due(step, self.train.save_every)

    def overdue(self, seconds: float) -> bool:
        """True if ``save_minutes`` have passed, ``seconds`` after the last checkpoint."""
        return self.train.save_minutes > 0 and seconds >= 60 * self.train.save_minutes

    def compares(self, step: int, *, saved: bool) -> bool:
        """True if replicas are to be compared after ``step``, of which a checkpoint is ``saved`` or not."""
        return due(step, self.train.check_replicas_every) or (saved and self.train.check_replicas_at_save)
