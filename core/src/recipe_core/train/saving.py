"""Checkpoints of a run: replicas compared, then saved, from one copy of the state."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recipe_core.checkpoint.saving.background import Saver, copy_to_host
from recipe_core.engine.protocol import Engine
from recipe_core.launch.watch.heartbeat import SAVE, beat
from recipe_core.layouts.parallel import Parallel
from recipe_core.train.callbacks.callbacks import Callbacks
from recipe_core.train.guards import replicas
from recipe_core.train.start.resume import TrainingProgress, training_state


@dataclass(frozen=True, kw_only=True)
class Saving:
    """Compares and saves the state of a run.

    Args:
        engine: the device and the ranks.
        model: the model under its layout.
        optimizer: of the model.
        progress: the position of the run.
        callbacks: whose states checkpoints hold.
        saver: writes the checkpoints.
        dry_run: save nothing and compare nothing.
    """

    engine: Engine
    model: Parallel
    optimizer: torch.optim.Optimizer
    progress: TrainingProgress
    callbacks: Callbacks
    saver: Saver
    dry_run: bool = False

    def compare_and_save(self, val_loss: float | None, *, compare: bool, save: bool) -> None:
        """Compare replicas, then save the state; a collective.

        Raises:
            ReplicaError: replicas differ between ranks; nothing was saved.
            DivergedError: a weight or an optimizer state is not finite; nothing was saved.
            RecipeError: the previous save failed.
        """
        compare = compare and self.engine.world_size > 1
        if self.dry_run or not (compare or save):
            return
        state, on_host = training_state(self.model, self.optimizer, self.progress, self.callbacks), False
        if compare:
            with beat.during("comparison of copies"):
                buffers = replicas.buffers(self.model)
                if self.engine.traced:  # one transfer for all, since the host waits for each
                    (state, buffers), on_host = copy_to_host([state, buffers], self.engine.to_host), True
                replicas.check(self.engine, self.model, {**buffers, **state}, self.progress.step)
        if save:
            with beat.during(SAVE):
                self.saver.save(self.progress.step, state, val_loss, copied_already=on_host)
