"""The training loop, the only one. Read :meth:`Trainer.step` first: one optimizer step.

Layouts differ behind :class:`recipe_core.layouts.parallel.Parallel`, not here. Data parallel and FSDP: ``backward``
reduces gradients over ranks after the last micro batch. Tensor parallel: the model's modules compute with shards and
communicate themselves (``layouts/tensor_parallel/roles.py``). Pipeline: ``backward`` is a 1F1B schedule
(``layouts/pipeline.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from recipe_core.checkpoint.background import Saver, copy_to_host
from recipe_core.checkpoint.store import Checkpoints
from recipe_core.engine import precision
from recipe_core.engine.protocol import Engine
from recipe_core.errors import DivergedError
from recipe_core.hooks.train import Train, due
from recipe_core.launch.stop import StopMode
from recipe_core.launch.watch.heartbeat import BACKWARD, FORWARD, LOADER, SAVE, beat
from recipe_core.layouts.parallel import Batch, Loss, Parallel, Run, StepDiscarded, accumulate, without_counts
from recipe_core.settings.schedule import Rate
from recipe_core.train import replicas
from recipe_core.train.divergence import Guard, not_finite_error
from recipe_core.train.feed import Feed, micro_batch_starts
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.golden import Golden
from recipe_core.train.metrics.meter import Meter, reduce_over_ranks
from recipe_core.train.metrics.report import Report
from recipe_core.train.metrics.writer import Metrics
from recipe_core.train.optim import set_learning_rate
from recipe_core.train.seeds import mix
from recipe_core.train.start.resume import TrainingProgress, training_state
from recipe_core.train.stopping import Stopping


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """The training loop and its parts."""

    engine: Engine
    run: Run
    model: Parallel
    loss: Loss
    optimizer: torch.optim.Optimizer
    progress: TrainingProgress
    feed: Feed
    meter: Meter
    checkpoints: Checkpoints
    saver: Saver
    stopping: Stopping
    report: Report
    learning_rate: Rate
    metrics: Metrics | None
    """Writer of the rows of metrics, on rank 0 only."""
    golden: Golden | None = None
    """Loss curve to compare with."""
    dry_run: bool = False
    """Save nothing and do not compare replicas."""
    guard: Guard | None = None
    """Judge of each step before its update; None where ``train.on_divergence`` is ``stop``."""
    straggler_row: Callable[[], dict[str, float]] = dict
    """Columns about the ranks' speed, for each row of metrics."""

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
        cfg, progress = self.run.train, self.progress
        end = cfg.steps if cfg.stop_after is None else min(cfg.steps, progress.step + cfg.stop_after)
        saved_at = time.monotonic()
        logged, saved, row = progress.step, progress.step, Row()
        stopped = self._evaluate_first()
        while progress.step < end and not stopped:
            stopped = not self.step(last=progress.step + 1 == end) or self.stopping.now()
            final = stopped or progress.step == end
            log, save = (final or due(progress.step, every) for every in (cfg.log_every, cfg.save_every))
            evaluate = _evaluation_due(cfg, progress.step)
            if cfg.save_minutes and not save:  # clocks differ between ranks: if one is due, all save
                save = self.engine.any(time.monotonic() - saved_at >= 60 * cfg.save_minutes)
            log = log or bool(self.guard and self.guard.skipped)  # the row names the skipped samples
            if (log or evaluate or save) and logged != progress.step:  # unchanged if the step was discarded
                row, logged = self._row(), progress.step
                if evaluate and not stopped:
                    values = self.evaluate()
                    stopped = values is None
                    row |= values or {}
                self._record(row)
                self._require_finite("validation loss", row.get("val_loss", 0.0))
            # not with traced steps: it would compile another graph
            unseen = final and not (stopped or evaluate or self.dry_run or self.engine.traced)
            if unseen and self.feed.last_batch is not None:
                self._require_finite("loss after it", self._loss_after_update(self.feed.last_batch))
            save = (save or stopped) and saved != progress.step
            check = due(progress.step, cfg.check_replicas_every) or (save and cfg.check_replicas_at_save)
            self._check_and_save(row.get("val_loss"), check=check, save=save)
            if save:
                saved_at, saved = time.monotonic(), progress.step
            self.report.advance(progress.step)
        return stopped

    def step(self, *, last: bool) -> bool:
        """One optimizer step; ``last``: read no batches ahead.

        Returns:
            False if the step was discarded; the state is then unchanged.
        """
        start, cfg, consumed = time.perf_counter(), self.run.train, self.progress.consumed_samples
        rate = self.learning_rate(self.progress.step)
        beat.begin_step(self.progress.step + 1)
        batches = self.feed.step(consumed, last=last)  # this rank's micro batches
        firsts = micro_batch_starts(self.run, consumed, cfg.global_batch)  # first sample of each
        self.stopping.begin_step(len(firsts))
        beat.enter(FORWARD)
        try:
            values = self.model.backward(batches, partial(self._forward, firsts))  # here layouts differ
        except StepDiscarded:
            self.model.discard_step()
            self.stopping.restore()
            return False
        beat.enter("optimizer")
        norm = self.model.clip(cfg.clip)
        if self.guard is not None and (reason := self.guard.problem(norm, values["loss"])):
            self._skip(self.guard, reason)
            return self.step(last=last)  # with the next samples; the guard limits the skips in a row
        set_learning_rate(self.optimizer, rate)
        self.saver.before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.engine.end_step()
        self.progress.advance(cfg.global_batch)
        seconds = time.perf_counter() - start
        self.meter.step(values, norm, rate, seconds)
        self.stopping.end_step(seconds)
        beat.end_step()
        if not self.dry_run:  # from now on there is something to save
            self.stopping.flag.mode = StopMode.SAVE
        return True

    def _skip(self, guard: Guard, reason: str) -> None:
        # the samples count as consumed, and the schedule does not advance
        first, end = self.progress.consumed_samples, self.progress.consumed_samples + self.run.train.global_batch
        self.report.say(guard.skip(reason, self.progress.step + 1, first, end))
        self.optimizer.zero_grad(set_to_none=True)
        self.engine.end_step()
        self.progress.consumed_samples = end
        beat.end_step()

    def _forward(self, firsts: list[int], module: nn.Module, batch: Batch, number: int) -> Mapping[str, Tensor]:
        """Forward and loss of micro batch ``number``, whose first sample is ``firsts[number]``.

        That sample's number seeds the generators, so that dropout depends neither on the rank nor on earlier
        computation, and checkpoints need no generator state.
        """
        if self.stopping.discards(number):
            raise StepDiscarded
        training = torch.is_grad_enabled()  # in a pipeline, module is a function without a mode
        beat.enter(FORWARD if training else "evaluation", number)
        self.engine.seed(mix(self.run.train.seed, firsts[number]))
        with precision.autocast(self.engine.autocast_device, self.run.train.precision):
            values = self.loss(module(batch), batch)
        if training:
            beat.enter(BACKWARD, number)
        return values

    def evaluate(self) -> dict[str, float] | None:
        """Values over the first ``eval_samples`` validation samples; None if a signal interrupted it."""
        reductions = self.model.reductions
        total: dict[str, Tensor] = {}
        firsts = micro_batch_starts(self.run, 0, self.run.train.eval_samples)
        for first in firsts:
            if self.stopping.now():
                return None
            beat.enter(LOADER)
            accumulate(total, self._values(self.feed.validation(first), first), len(firsts), reductions)
        means = reduce_over_ranks(self.engine, self.run, total, reductions)
        return {f"val_{name}": value for name, value in means.items()}

    def _values(self, batch: Batch, first: int) -> dict[str, Tensor]:
        beat.enter("evaluation")
        return without_counts(self.model.evaluate(batch, partial(self._forward, [first])), self.model.reductions)

    def _evaluate_first(self) -> bool:
        """Evaluate before the first step, where that is due; return True if a signal asked to stop.

        It is due in a new run, and after a checkpoint that a signal saved before the evaluation of its step.
        """
        cfg, step = self.run.train, self.progress.step
        owed = step > 0 and _evaluation_due(cfg, step) and self.checkpoints.unevaluated(step)
        stopped = self.stopping.now()
        if stopped or not cfg.eval_every or not (step == 0 or owed):
            return stopped
        values = self.evaluate()
        if values or step == 0:
            self._record(_position(self.progress) | (values or {}))
        if values and owed:
            self._require_finite("validation loss", values["val_loss"])
            self.checkpoints.evaluated(step, values["val_loss"])
        return values is None

    def _row(self) -> Row:
        """The metrics of the last step; a collective that synchronises with the device.

        Raises:
            DivergedError, GoldenError: see :meth:`train`; raised after the row is recorded.
        """
        with beat.during("reading the device"):
            reading = self.meter.read()
        row = _position(self.progress) | reading.row | self.straggler_row()
        if self.guard is not None:
            row |= self.guard.columns()
            self.guard.add_norms([row])
        departure = self.golden.departure(self.progress.step, reading.losses) if self.golden else None
        problem = departure or self._not_finite(row)
        if problem is not None:
            self._record(row)
            raise problem
        return row

    def _not_finite(self, row: Row) -> DivergedError | None:
        if math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]):
            return None
        finding = f"the loss is {row['loss']} and the gradient norm {row['grad_norm']}"
        return not_finite_error(row["step"], finding, self.saver.recovery_advice(row["step"]))

    def _require_finite(self, name: str, loss: float) -> None:
        # The loss of a step is computed before its update, so it does not show a divergence by that update.
        if not math.isfinite(loss):
            step = self.progress.step
            raise not_finite_error(step, f"the {name} is {loss}", self.saver.recovery_advice(step))

    def _loss_after_update(self, batch: Batch) -> float:
        # batch: the last step's first micro batch
        cfg, reductions = self.run.train, self.model.reductions
        first = micro_batch_starts(self.run, self.progress.consumed_samples - cfg.global_batch, cfg.global_batch)[0]
        total: dict[str, Tensor] = {}
        accumulate(total, self._values(batch, first), 1, reductions)
        return reduce_over_ranks(self.engine, self.run, total, reductions)["loss"]

    def _record(self, row: Row) -> None:
        if self.metrics is not None:
            self.metrics.write(row)

    def _check_and_save(self, val_loss: float | None, *, check: bool, save: bool) -> None:
        check = check and self.engine.world_size > 1
        if self.dry_run or not (check or save):
            return
        state, on_host = training_state(self.model, self.optimizer, self.progress), False
        if check:
            with beat.during("comparison of copies"):
                buffers = replicas.buffers(self.model)
                if self.engine.traced:  # one transfer for all, since the host waits for each
                    (state, buffers), on_host = copy_to_host([state, buffers], self.engine.to_host), True
                replicas.check(self.engine, self.model, {**buffers, **state}, self.progress.step)
        if save:
            with beat.during(SAVE):
                self.saver.save(self.progress.step, state, val_loss, copied_already=on_host)


def _evaluation_due(train: Train, step: int) -> bool:
    return train.eval_every > 0 and (step % train.eval_every == 0 or step == train.steps)


def _position(progress: TrainingProgress) -> Row:
    return {"step": progress.step, "consumed_samples": progress.consumed_samples}
