"""One optimizer step, and evaluation. Read :meth:`Stepper.step` first.

Layouts differ behind :class:`recipe_core.layouts.parallel.Parallel`, not here. Data parallel and FSDP: ``backward``
reduces gradients over ranks after the last micro batch. Tensor parallel: the model's modules compute with shards and
communicate themselves (``layouts/tensor_parallel/roles.py``). Pipeline: ``backward`` is a 1F1B schedule
(``layouts/pipeline.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from recipe_core.engine import precision
from recipe_core.engine.protocol import Engine
from recipe_core.hooks.kinds import noun
from recipe_core.hooks.specs.wrapper import outermost
from recipe_core.launch.watch.heartbeat import BACKWARD, FORWARD, LOADER, beat
from recipe_core.layouts.built import as_part_error
from recipe_core.layouts.parallel import Batch, Loss, Parallel, Run, StepDiscarded, accumulate, without_counts
from recipe_core.settings.job import Job
from recipe_core.settings.schedule import Rate
from recipe_core.train.callbacks.callbacks import Callbacks
from recipe_core.train.feed import Feed
from recipe_core.train.guards.divergence import Guard
from recipe_core.train.metrics.evaluations.measuring import Evaluations
from recipe_core.train.metrics.meter import reduce_over_ranks
from recipe_core.train.optim import set_learning_rate
from recipe_core.train.seeds import mix
from recipe_core.train.start.resume import TrainingProgress
from recipe_core.train.stopping import Stopping


@dataclass(frozen=True)
class StepResult:
    """The values of an optimizer step, on the device."""

    values: dict[str, Tensor]
    """The result of :meth:`Parallel.backward`."""
    norm: Tensor
    """The gradient norm before clipping."""
    rate: float
    """The learning rate."""
    seconds: float
    """Duration on the host."""
    samples: int
    """Samples over all ranks."""


@dataclass(frozen=True, kw_only=True)
class StepErrors:
    """Contexts that name the part of the job whose code raises in a step."""

    module: AbstractContextManager[None]
    backward: AbstractContextManager[None]
    optimizer: AbstractContextManager[None]

    @classmethod
    def of(cls, job: Job) -> StepErrors:
        """Return the contexts of the parts of ``job``."""
        model, source = job.model.spec, outermost(job.data)
        return cls(
            module=as_part_error(model, f": its module, given a batch of {noun(source)} {source.name!r},"),
            # autograd reports a mistake of the model as a RuntimeError; any other error is one of the layout
            backward=as_part_error(model, ": the backward pass of its module", only=RuntimeError),
            optimizer=as_part_error(job.optimizer.spec, ": step"),
        )


@dataclass(frozen=True, kw_only=True)
class Stepper:
    """Takes optimizer steps, and evaluates.

    Args:
        engine: the device and the ranks.
        run: mesh, batch sizes and seed.
        model: the model under its layout.
        loss: the loss function of its output.
        optimizer: of its parameters.
        learning_rate: the rate of each step.
        feed: the micro batches.
        progress: the position of the run; a step advances it.
        stopping: votes of all ranks on stopping.
        callbacks: called before a step, before the optimizer, and at evaluations.
        before_update: called before the optimizer changes the state.
        guard: judge of each step before its update; None where ``train.on_divergence`` is ``stop``.
        say: prints a line about a skipped step.
        errors: name the part whose code raises.
        evaluations: measured after each validation.
    """

    engine: Engine
    run: Run
    model: Parallel
    loss: Loss
    optimizer: torch.optim.Optimizer
    learning_rate: Rate
    feed: Feed
    progress: TrainingProgress
    stopping: Stopping
    callbacks: Callbacks
    before_update: Callable[[], None]
    guard: Guard | None
    say: Callable[[str], None]
    errors: StepErrors
    evaluations: Evaluations = field(default_factory=Evaluations)

    def step(self, *, last: bool) -> StepResult | None:
        """Take one optimizer step; ``last``: read no batches ahead.

        Returns:
            None if the step was discarded; the state is then unchanged.
        """
        start, cfg = time.perf_counter(), self.run.train
        rate, number = self.learning_rate(self.progress.step), self.progress.step + 1
        beat.begin_step(number)
        self.callbacks.at("before_step", number)
        keep = last and not self.engine.traced  # for loss_after_update
        batches, firsts = self.feed.step(self.progress.consumed_samples, last=last, keep=keep)
        self.stopping.begin_step(len(firsts))
        beat.enter(FORWARD)
        try:
            with self.errors.backward:
                values = self.model.backward(batches, partial(self._forward, firsts))  # here layouts differ
        except StepDiscarded:
            self.model.discard_step()
            self.stopping.restore()
            return None
        beat.enter("optimizer")
        self.callbacks.at("before_optimizer", number)
        norm = self.model.clip(cfg.clip)
        if self.guard is not None and (reason := self.guard.problem(norm, values["loss"])):
            self._skip(self.guard, reason)
            return self.step(last=last)  # with the next samples; the guard limits the skips in a row
        set_learning_rate(self.optimizer, rate)
        self.before_update()
        with self.errors.optimizer:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.engine.end_step()
        samples = self.feed.samples_after(self.progress.consumed_samples)
        self.progress.advance(samples)
        return StepResult(values, norm, rate, time.perf_counter() - start, samples)

    def _skip(self, guard: Guard, reason: str) -> None:
        # the samples count as consumed, and the schedule does not advance
        first = self.progress.consumed_samples
        end = first + self.feed.samples_after(first)
        self.say(guard.skip(reason, self.progress.step + 1, first, end))
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
            with self.errors.module:
                output = module(batch)
            values = self.loss(output, batch)
        if training:
            beat.enter(BACKWARD, number)
        return values

    def evaluate(self) -> dict[str, float] | None:
        """Values over the first ``eval_samples`` validation samples, those within callbacks' contexts, and the numbers
        of evaluations; None if a signal interrupted it."""
        values: dict[str, float] = {}
        contexts: dict[str, AbstractContextManager[object]] = {"": nullcontext(), **self.callbacks.evaluations()}
        for name, context in contexts.items():
            with context:
                found = self._evaluated(f"val_{name}_" if name else "val_")
            if found is None:
                return None
            values |= found
        if math.isfinite(values["val_loss"]):  # otherwise the run ends by it
            numbers = self.evaluations.measure(self.engine, self.model.module, self.run.train.seed, self.stopping.now)
            if numbers is None:
                return None
            values |= numbers
        self.callbacks.at("after_evaluation", self.progress.step, values)
        return values

    def _evaluated(self, prefix: str) -> dict[str, float] | None:
        total: dict[str, Tensor] = {}
        firsts = self.feed.validation_starts()
        for first in firsts:
            if self.stopping.now():
                return None
            beat.enter(LOADER)
            batch = self.feed.validation(first)
            accumulate(total, self._values(batch, first), len(firsts), self.model.reductions)
        return {f"{prefix}{name}": value for name, value in self._reduced(total).items()}

    def loss_after_update(self) -> float | None:
        """The loss of the last step's first micro batch with the updated weights.

        None before the last step, and on a traced engine, which would compile another graph.
        """
        if self.feed.last_micro_batch is None:
            return None
        total: dict[str, Tensor] = {}
        accumulate(total, self._values(*self.feed.last_micro_batch), 1, self.model.reductions)
        return self._reduced(total)["loss"]

    def _values(self, batch: Batch, first: int) -> dict[str, Tensor]:
        beat.enter("evaluation")
        return without_counts(self.model.evaluate(batch, partial(self._forward, [first])), self.model.reductions)

    def _reduced(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        return reduce_over_ranks(self.engine, self.run, values, self.model.reductions)
