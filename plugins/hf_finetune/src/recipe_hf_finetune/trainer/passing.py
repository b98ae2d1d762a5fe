"""Optimizer steps that are passed over because they diverge: ``train.on_divergence`` for the Trainer.

The Trainer takes the number of its steps for the position in the samples. Here a step that is not applied moves the
position and not the number: the next samples take its place, and the schedule waits, as in the core's loop.
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
from recipe_core.train.divergence import Guard
from recipe_hf_finetune.checkpoint import STATE

PASSED = "RecipePassedSteps"
"""Entry of ``stateful_callbacks`` in the Trainer's state: steps whose samples were passed over."""


def passed_steps(checkpoint: Path) -> int:
    """Steps whose samples a run had passed over when it saved ``checkpoint``.

    Raises:
        ValueError, TypeError, AttributeError, OverflowError: the Trainer's state is damaged.
    """
    entry = read_json(checkpoint / STATE).get("stateful_callbacks", {}).get(PASSED, {})
    if (steps := int(entry.get("attributes", {}).get("steps", 0))) < 0:
        raise ValueError(f"{PASSED}: {steps} steps")
    return steps


@dataclass
class Passing:
    """Judges each step before the optimizer takes it, and counts those that it does not take.

    Args:
        guard: judges; None where ``train.on_divergence`` is ``stop``.
        steps: passed over so far.
        say: takes a line for the log.
    """

    guard: Guard | None
    steps: int
    say: Callable[[str], None]
    skipped: bool = False
    """The last step that was judged is not applied."""
    _norm: Tensor | None = None
    _schedule: dict[str, Any] = field(default_factory=dict)
    _rates: list[float] = field(default_factory=list)

    @property
    def extends_epochs(self) -> bool:
        """True if the run may need more samples than its steps have."""
        return self.guard is not None or self.steps > 0

    def watch(self, accelerator: Any) -> None:
        """Note the gradient norm of each step, which the Trainer computes where it clips."""
        clip = accelerator.clip_grad_norm_

        def clip_and_note(*args: Any, **kwargs: Any) -> Any:
            self._norm = clip(*args, **kwargs)
            return self._norm

        if self.guard is not None:
            accelerator.clip_grad_norm_ = clip_and_note

    def judge(self, trainer: Any, loss: Tensor, batch: int) -> None:
        """Drop the gradients of a step of ``batch`` samples that diverges; a collective.

        Without gradients, the optimizer leaves weights and moments as they are.

        Raises:
            RollbackError, DivergedError: as :meth:`Guard.refuse` says.
        """
        self.skipped = False
        if self.guard is None:
            return
        norm, self._norm = self._norm, None
        if norm is None:  # older releases compute none where they do not clip
            norm = nn.utils.clip_grad_norm_(trainer.model.parameters(), math.inf)
        if not (reason := self.guard.problem(torch.as_tensor(norm), loss)):
            return
        step = trainer.state.global_step
        first = (step + self.steps) * batch
        self.say(self.guard.refuse(reason, step + 1, first, first + batch))
        self.skipped = True
        trainer.model.zero_grad()
        self._schedule = trainer.lr_scheduler.state_dict()
        self._rates = [group["lr"] for group in trainer.optimizer.param_groups]

    def undo(self, trainer: Any) -> None:
        """Take back that the Trainer has counted the step that was skipped."""
        self.steps += 1
        trainer.state.global_step -= 1
        trainer.lr_scheduler.load_state_dict(self._schedule)
        for group, rate in zip(trainer.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
