"""The training loop, the only one. ``step.py`` has one optimizer step; read it second."""

from __future__ import annotations

import time
from dataclasses import dataclass

from recipe_core.engine.protocol import Communication
from recipe_core.launch.stop import StopMode
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.train.cadence import Cadence
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.recorder import Recorder
from recipe_core.train.metrics.report import Report
from recipe_core.train.saving import Saving
from recipe_core.train.start.resume import TrainingProgress
from recipe_core.train.step import Stepper
from recipe_core.train.stopping import Stopping


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The training loop and its parts."""

    ranks: Communication
    cadence: Cadence
    progress: TrainingProgress
    stepper: Stepper
    recorder: Recorder
    saving: Saving
    stopping: Stopping
    report: Report

    def train(self) -> bool:
        """Train until the end of the schedule, ``stop_after``, or a signal, with checkpoints on the way and at the end.

        Before the first step is done there is nothing to save, and a signal ends the process immediately. Later, it
        ends the run after the current step, or in a long step after a micro batch; that step is then discarded.

        Returns:
            True if a signal ended it; the same on all ranks.

        Raises:
            DivergedError: loss, gradient norm or validation loss is not finite; nothing was saved since the last good
                step.
            GoldenError: a loss deviates from the golden curve; nothing was saved since.
            ReplicaError: replicas of a parameter differ between ranks; this step was not saved.
        """
        cadence, progress, recorder = self.cadence, self.progress, self.recorder
        callbacks = self.stepper.callbacks
        logged, saved, saved_at, row = progress.step, progress.step, time.monotonic(), Row()
        callbacks.at("on_start", progress.step)
        stopped = self._evaluate_first()
        while progress.step < cadence.end and not (stopped or callbacks.reason):
            stopped = not self._step() or self.stopping.now()
            step, final = progress.step, stopped or bool(callbacks.reason) or progress.step == cadence.end
            evaluate = cadence.evaluates(step)
            save = final or cadence.saves(step)
            if cadence.train.save_minutes and not save:  # clocks differ between ranks: if one is due, all save
                save = self.ranks.any(cadence.overdue(time.monotonic() - saved_at))
            log = final or cadence.logs(step) or recorder.has_skipped
            if (log or evaluate or save) and logged != step:  # unchanged if the step was discarded
                row, logged = recorder.read(), step
                row |= callbacks.metrics(row)
                if evaluate and not stopped:
                    values = self.stepper.evaluate()
                    stopped = values is None
                    row |= values or {}
                recorder.write(row)
                # The loss of a step is computed before its update, and does not show a divergence by that update.
                recorder.require_finite("validation loss", row.get("val_loss", 0.0))
            if final and not (stopped or evaluate):
                self._require_finite_update()
            ends = final or stopped or bool(callbacks.reason)
            if ends:
                callbacks.at("on_end", step)
            save = (save or ends) and saved != step
            if save:
                callbacks.at("before_save", step)
            self.saving.compare_and_save(row.get("val_loss"), compare=cadence.compares(step, saved=save), save=save)
            if save:
                saved_at, saved = time.monotonic(), step
            self.report.advance(step)
        return stopped

    def _step(self) -> bool:
        # False if the step was discarded
        result = self.stepper.step(last=self.progress.step + 1 == self.cadence.end)
        if result is None:
            return False
        self.stepper.callbacks.at("after_step", self.progress.step)
        self.recorder.step(result.values, result.norm, result.rate, result.seconds, result.samples)
        self.stopping.end_step(result.seconds)
        beat.end_step()
        if not self.saving.dry_run:  # from now on there is something to save
            self.stopping.flag.mode = StopMode.SAVE
        return True

    def _require_finite_update(self) -> None:
        loss = None if self.saving.dry_run else self.stepper.loss_after_update()
        if loss is not None:
            self.recorder.require_finite("loss after it", loss)

    def _evaluate_first(self) -> bool:
        """Evaluate before the first step, where that is due; return True if a signal asked to stop.

        It is due in a new run, and after a checkpoint that a signal saved before the evaluation of its step.
        """
        checkpoints, step = self.saving.saver.checkpoints, self.progress.step
        owed = step > 0 and self.cadence.evaluates(step) and checkpoints.unevaluated(step)
        stopped = self.stopping.now()
        if stopped or not self.cadence.train.eval_every or not (step == 0 or owed):
            return stopped
        values = self.stepper.evaluate()
        if values or step == 0:
            self.recorder.write(self.recorder.position() | (values or {}))
        if values and owed:
            self.recorder.require_finite("validation loss", values["val_loss"])
            checkpoints.evaluated(step, values["val_loss"])
            if self.stepper.callbacks.reason:  # their states have changed, and no step follows
                self.saving.compare_and_save(values["val_loss"], compare=False, save=True)
        return values is None
