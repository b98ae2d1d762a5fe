"""Skip optimizer steps that diverge: ``train.on_divergence`` for the Trainer.

The Trainer derives the position in the samples from the number of steps. Here a skipped step advances the position and
not the number: the step is repeated with the next samples, and the schedule waits, as in the core's loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipe_core.files.documents import read_json
from recipe_core.train.guards.divergence import Guard
from recipe_hf_finetune.checkpoint import STATE

SKIPPED_STEPS = "RecipePassedSteps"
"""Entry of ``stateful_callbacks`` in the Trainer's state: number of skipped steps."""


def skipped_steps(checkpoint: Path) -> int:
    """Number of steps that a run had skipped when it saved ``checkpoint``.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError: the Trainer's state is damaged.
    """
    entry = read_json(checkpoint / STATE).get("stateful_callbacks", {}).get(SKIPPED_STEPS, {})
    if (steps := int(entry.get("attributes", {}).get("steps", 0))) < 0:
        raise ValueError(f"{SKIPPED_STEPS}: {steps} steps")
    return steps


@dataclass
class StepSkipper:
    """Checks each step before the optimizer applies it, and counts the skipped ones.

    Args:
        guard: checks for divergence; None where ``train.on_divergence`` is ``stop``.
        steps: skipped so far.
        say: writes a line to the log.
    """

    guard: Guard | None
    steps: int
    say: Callable[[str], None]
    skipped: bool = False
    """The last checked step is not applied."""
    _norm: Tensor | None = None
    _schedule: dict[str, Any] = field(default_factory=dict)
    _rates: list[float] = field(default_factory=list)

    @property
    def extends_epochs(self) -> bool:
        """True if the run may read more samples than its steps use."""
        return self.guard is not None or self.steps > 0

    def watch(self, accelerator: Any) -> None:
        """Record the gradient norm that the Trainer computes when it clips."""
        clip = accelerator.clip_grad_norm_

        def clip_and_note(*args: Any, **kwargs: Any) -> Any:
            self._norm = clip(*args, **kwargs)
            return self._norm

        if self.guard is not None:
            accelerator.clip_grad_norm_ = clip_and_note

    def judge(self, trainer: Any, loss: Tensor, batch: int) -> None:
        """Set the gradients of a diverging step of ``batch`` samples to None; a collective.

        Without gradients, the optimizer leaves weights and moments unchanged.

        Raises:
            RollbackError, DivergedError: as :meth:`Guard.skip` says.
        """
        self.skipped = False
        if self.guard is None:
            return
        norm, self._norm = self._norm, None
        if norm is None:  # older releases compute none without clipping
            norm = nn.utils.clip_grad_norm_(trainer.model.parameters(), math.inf)
        if not (reason := self.guard.problem(torch.as_tensor(norm), loss)):
            return
        step = trainer.state.global_step
        first = (step + self.steps) * batch
        self.say(self.guard.skip(reason, step + 1, first, first + batch))
        self.skipped = True
        trainer.model.zero_grad()
        self._schedule = trainer.lr_scheduler.state_dict()
        self._rates = [group["lr"] for group in trainer.optimizer.param_groups]

    def undo(self, trainer: Any) -> None:
        """Restore the Trainer's step number and schedule from before the skipped step."""
        self.steps += 1
        trainer.state.global_step -= 1
        trainer.lr_scheduler.load_state_dict(self._schedule)
        for group, rate in zip(trainer.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
