"""The training loop, the only one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor, nn

from recipe_core.engine import precision
from recipe_core.engine.protocol import Engine
from recipe_core.errors import DivergedError
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Batch, Loss, Parallel, Run
from recipe_core.settings.schedule import learning_rate
from recipe_core.train.feed import Feed, starts
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.golden import Golden
from recipe_core.train.metrics.meter import Meter, mean_over_ranks, without_counts
from recipe_core.train.optim import set_learning_rate
from recipe_core.train.seeds import mix


@dataclass
class Progress:
    """How far a run has come. Saved with it; with the seed it is all that order of data and dropout depend on."""

    step: int = 0
    consumed_samples: int = 0

    def advance(self, samples: int) -> None:
        """Count one optimizer step."""
        self.step += 1
        self.consumed_samples += samples

    def state(self) -> dict[str, int]:
        """Plain values for a checkpoint."""
        return asdict(self)

    def restore(self, state: Mapping[str, int]) -> None:
        """Take over what :meth:`state` gave."""
        self.step, self.consumed_samples = state["step"], state["consumed_samples"]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop works with."""

    engine: Engine
    run: Run
    model: Parallel
    loss: Loss
    optimizer: torch.optim.Optimizer
    feed: Feed
    meter: Meter
    record: Callable[[Row], None]
    """Takes each row of metrics; does nothing on ranks other than 0."""
    advance: Callable[[int], None]
    """Told the step after each one (a progress bar)."""
    save: Callable[[float | None], None]
    """Saves the state, with the validation loss of the step where there is one."""
    check: Callable[[], None]
    """Compares copies between ranks."""
    stop_signal: Callable[[], str | None]
    """Name of the signal that asked this process to stop."""
    golden: Golden | None = None
    """The curve that the losses are held to."""
    owes_evaluation: bool = False
    """The run goes on from a checkpoint that was saved, on a signal, before the evaluation that was due."""
    evaluated: Callable[[float], None] = lambda val_loss: None
    """Takes the validation loss of the checkpoint that the run goes on from; all ranks call it."""


def train(parts: Parts, progress: Progress) -> bool:
    """Train to the end of the schedule, to ``stop_after``, or to a signal; save on the way and at the end.

    Returns whether a signal ended it. All ranks return the same.

    Raises:
        DivergedError: loss or gradient norm is not finite; nothing was saved since the last good step.
        GoldenError: a loss departs from the golden curve; nothing was saved since.
        ReplicaError: ranks hold different copies of a parameter; nothing was saved of this step.
    """
    cfg, began = parts.run.train, progress.step
    end = cfg.steps if cfg.stop_after is None else min(cfg.steps, began + cfg.stop_after)
    stopped, saved_at = _asked_to_stop(parts), time.monotonic()
    if cfg.eval_every and (began == 0 or parts.owes_evaluation) and not stopped:
        values = _evaluate(parts)
        stopped = values is None
        if values or began == 0:
            parts.record(_position(progress) | (values or {}))
        if values and parts.owes_evaluation:
            parts.evaluated(values["val_loss"])
    while progress.step < end and not stopped:
        _step(parts, progress, last=progress.step + 1 == end)
        stopped = _asked_to_stop(parts)
        final = stopped or progress.step == end
        log, save = (final or _due(progress.step, every) for every in (cfg.log_every, cfg.save_every))
        evaluate = evaluation_due(cfg, progress.step)
        if cfg.save_minutes and not save:  # the ranks' clocks differ: one that is due decides for all
            save = parts.engine.any(time.monotonic() - saved_at >= 60 * cfg.save_minutes)
        if log or evaluate or save:
            row = _row(parts, progress)
            if evaluate and not stopped:
                values = _evaluate(parts)
                stopped = values is None
                row |= values or {}
            parts.record(row)
        save = save or stopped
        if _due(progress.step, cfg.check_replicas_every) or (save and cfg.check_replicas_at_save):
            parts.check()
        if save:
            parts.save(row.get("val_loss"))
            saved_at = time.monotonic()
        parts.advance(progress.step)
    return stopped


def evaluation_due(train: Train, step: int) -> bool:
    """Whether the run evaluates after ``step``."""
    return train.eval_every > 0 and (step % train.eval_every == 0 or step == train.steps)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _step(parts: Parts, progress: Progress, last: bool) -> None:
    """One optimizer step."""
    start, cfg = time.perf_counter(), parts.run.train
    rate = learning_rate(cfg, progress.step)
    batches = parts.feed.step(progress.consumed_samples, last=last)
    firsts = starts(parts.run, progress.consumed_samples, cfg.global_batch)

    def micro(module: nn.Module, batch: Batch, number: int) -> Mapping[str, Tensor]:
        return parts.meter.micro(_micro(parts, firsts, module, batch, number))

    values = parts.model.backward(batches, micro)
    norm = parts.model.clip(cfg.clip)
    set_learning_rate(parts.optimizer, rate)
    parts.optimizer.step()
    parts.optimizer.zero_grad(set_to_none=True)
    parts.engine.end_step()
    progress.advance(cfg.global_batch)
    parts.meter.step(values, norm, rate, time.perf_counter() - start)


def _micro(parts: Parts, firsts: list[int], module: nn.Module, batch: Batch, number: int) -> Mapping[str, Tensor]:
    """Forward and loss of one micro batch.

    The generators are seeded by the number of its first sample, so that dropout does not depend on which rank computes
    it, nor on what the process computed before: no generator's state needs saving.
    """
    parts.engine.seed(mix(parts.run.train.seed, firsts[number]))
    with precision.autocast(parts.engine.autocast_device, parts.run.train.precision):
        return parts.loss(module(batch), batch)


def _asked_to_stop(parts: Parts) -> bool:
    """Whether any rank got a signal; a collective, so that all ranks stop at the same step."""
    return parts.engine.any(parts.stop_signal() is not None)


def _row(parts: Parts, progress: Progress) -> Row:
    """The metrics of the last step; a collective. The first moment at which the host waits for the device.

    Raises:
        DivergedError, GoldenError: as :func:`train` says, once the row is recorded.
    """
    reading = parts.meter.read()
    row = _position(progress) | reading.row
    departure = parts.golden.departure(progress.step, reading.losses) if parts.golden else None
    problem = departure or _not_finite(row)
    if problem is not None:
        parts.record(row)
        raise problem
    return row


def _not_finite(row: Row) -> DivergedError | None:
    if math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]):
        return None
    return DivergedError(
        f"step {row['step']}: the loss is {row['loss']} and the gradient norm {row['grad_norm']}, which is not finite. "
        "Nothing was saved since the last good step; lower train.lr, lengthen train.warmup_steps or set train.clip "
        "and continue from the last checkpoint with the same --out"
    )


def _position(progress: Progress) -> Row:
    return {"step": progress.step, "consumed_samples": progress.consumed_samples}


def _evaluate(parts: Parts) -> dict[str, float] | None:
    """Means over the first ``eval_samples`` validation samples; None when a signal asked to stop."""
    total: dict[str, Tensor] = {}
    firsts = starts(parts.run, 0, parts.run.train.eval_samples)
    for first in firsts:
        if _asked_to_stop(parts):
            return None
        batch = parts.feed.validation(first)
        values = without_counts(parts.model.evaluate(batch, partial(_micro, parts, [first])))
        for name, value in values.items():
            total[name] = total.get(name, torch.zeros_like(value)) + value / len(firsts)
    return {f"val_{name}": value for name, value in mean_over_ranks(parts.engine, parts.run, total).items()}
