"""The base class of callbacks, and the run that a callback is built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.engine.protocol import Engine
from recipe_core.layouts.parallel import Parallel, Run


@dataclass(frozen=True, kw_only=True)
class CallbackRun:
    """The run that a callback is built for, on one rank."""

    run: Run
    """Ranks, mesh, settings of training, and how the model is divided."""
    model: Parallel
    """The model under its layout. ``model.named_parameters()`` are this rank's, as plain tensors or DTensors."""
    optimizer: torch.optim.Optimizer
    engine: Engine
    """The device, and the other ranks: ``engine.gather(value)`` returns the values of all ranks on each."""
    folder: Path
    """The run folder."""
    stop: Callable[[str], None] = lambda reason: None
    """Ends the run after this step, with a checkpoint, for the given reason. All ranks must call it at the same
    moment."""


class Callback:
    """Code at named moments of training; every rank calls the same ones. Override what you need.

    Steps count from 1, as in metrics.jsonl. A callback may communicate with other ranks, since they are at the same
    moment. Between two moments, it must leave weights and optimizer states alone: a checkpoint may still be reading
    them.
    """

    def on_start(self, step: int) -> None:
        """Called once, before the first step of this process; the run has done ``step`` steps, and states are
        loaded."""

    def before_step(self, step: int) -> None:
        """Called before ``step``; again if it is discarded or skipped."""

    def global_batch(self, consumed: int) -> int | None:
        """Return the samples of the step that begins after ``consumed`` samples, over all ranks; None:
        ``train.global_batch``. A function of ``consumed`` alone: it is asked on other threads, too."""
        return None

    def before_optimizer(self, step: int) -> None:
        """Called when the gradients of ``step`` are complete, before they are clipped. They may be changed; a parameter
        whose ``grad`` is None is not updated."""

    def after_step(self, step: int) -> None:
        """Called after the update of ``step``. Weights may be changed here."""

    def metrics(self, step: int) -> Mapping[str, float]:
        """Return further columns for the row of ``step``, the same on all ranks; called if the step is logged."""
        return {}

    def evaluations(self) -> Mapping[str, AbstractContextManager[Any]]:
        """Return further evaluations by name: each runs within its context, and its values are ``val_NAME_...``."""
        return {}

    def after_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Called with all values of an evaluation: ``val_loss`` and others. Step 0 is before training."""

    def before_save(self, step: int) -> None:
        """Called before a checkpoint of ``step``."""

    def on_end(self, step: int) -> None:
        """Called once after the last step of this process, and before its checkpoint; not if it ends by an error."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: a nested dict of plain values, which are equal on all ranks, and tensors.

        A tensor that belongs to a parameter has the parameter's name as its key, and is placed like it
        (``torch.zeros_like(parameter)``), so that it loads under other layouts. All other tensors are equal on all
        ranks. Only called if the contribution says ``saves=True``.
        """
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a checkpoint. Tensors have the placement that :meth:`state` had."""


def local(tensor: Tensor) -> Tensor:
    """Return this rank's values of ``tensor``, which may be a DTensor, without a copy or a gradient."""
    values = tensor.detach()
    shard: Tensor = getattr(values, "_local_tensor", values)
    return shard
