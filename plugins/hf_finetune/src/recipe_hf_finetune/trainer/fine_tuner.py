"""Hugging Face's Trainer, with the core's metrics, checkpoints and signals in the place of its own."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PrinterCallback, Trainer, TrainerCallback

from recipe_core import CheckpointError, Engine, Parallel, RecipeError
from recipe_core.checkpoint.store import Checkpoints
from recipe_core.hooks.train import due
from recipe_core.launch.stop import StopFlag
from recipe_core.launch.watch.heartbeat import BACKWARD, FORWARD, SAVE, beat
from recipe_core.layouts.parallel import StepGivenUp
from recipe_core.layouts.replicated import settle_buckets
from recipe_core.train import replicas
from recipe_core.train.divergence import not_finite
from recipe_core.train.metrics.curves import Row
from recipe_core.train.stopping import Stopping
from recipe_hf_finetune.checkpoint import STATE
from recipe_hf_finetune.settings import FineTune
from recipe_hf_finetune.trainer.passing import PASSED, Passing


@dataclass(frozen=True, kw_only=True)
class Ties:
    """The connections of the Trainer with the run."""

    engine: Engine
    train: FineTune
    checkpoints: Checkpoints
    stop: StopFlag
    record: Callable[[Row], None]
    """Takes each row of metrics; does nothing on ranks other than 0."""
    advance: Callable[[int], None]
    """Called with the step after each one."""
    epoch_steps: int
    """Optimizer steps of an epoch."""
    measure: Callable[[Any, Any], dict[str, float]]
    """Metrics of logits and labels."""
    pace: Callable[[], Row]
    """Columns about the ranks' speed, for each row of metrics."""
    owes_evaluation: bool
    """The run goes on from a checkpoint that was saved, on a signal, before the evaluation that was due."""
    passing: Passing
    """Passes over steps that diverge."""


class FineTuner(Trainer):  # type: ignore[misc]  # whose hints we do not follow
    """Trains, evaluates and saves when :class:`Policy` says so; one row of metrics a step at most.

    Args:
        ties: the run.
        model: it must not take the number of items for its loss: with several micro batches a step, the Trainer would
            otherwise train models whose ``forward`` has ``**kwargs`` on a multiple of the loss.
    """

    def __init__(self, *, ties: Ties, model: Any, **kwargs: Any) -> None:
        model.accepts_loss_kwargs = False
        super().__init__(model=model, compute_metrics=self._measured, **kwargs)
        self.remove_callback(PrinterCallback)
        self.stopping = Stopping(ties.engine, ties.stop, self.model, 0)
        self.add_callback(Policy(ties, self.begin, self.judge, self.end_step, self.stopping.now))
        self.ties = ties
        ties.passing.watch(self.accelerator)
        self.logits: Any = None
        """Of the last evaluation, ``[samples, labels]``."""
        self._row: Row = {}
        self._val_loss: float | None = None
        self._step_loss: Tensor | None = None
        self._last_loss = torch.tensor(math.nan)
        self._watch = _Watch()
        self._micro_batch = 0
        """Number of the next one of the step."""
        self._random: tuple[Any, ...] | None = None
        """The generators as the step found them, where it may be given up."""
        self._begun_at: int | None = None
        """The step of the checkpoint to continue from."""
        self._saved: int | None = None
        """The step of the last checkpoint."""

    def begin(self) -> None:
        """Before the first step, with everything loaded: evaluate what a signal left out."""
        if isinstance(self.model_wrapped, DistributedDataParallel):
            settle_buckets(self.model_wrapped)
        if self._begun_at is not None:
            self.state.global_step = self._globalstep_last_logged = self._begun_at
        if not self.ties.owes_evaluation or self.ties.engine.any(self.ties.stop.signal is not None):
            return
        step = self.state.global_step
        self._row = {"step": step, "consumed_samples": self._consumed_samples()}
        self.evaluate()
        self._flush()
        assert self._val_loss is not None
        self.ties.checkpoints.evaluated(step, self._val_loss)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of one micro batch; its part of the loss of the step.

        Raises:
            StepGivenUp: a rank got a signal, and the step is a long one; see :meth:`give_up`.
        """
        if not self._micro_batch:
            self.stopping.begin_step(self.args.gradient_accumulation_steps)
            self._random = _generators() if self.stopping.asks or self.ties.passing.guard else None
        if self.stopping.given_up(self._micro_batch):
            raise StepGivenUp
        self._watch.start()
        loss: Tensor = super().training_step(*args, **kwargs)
        self._micro_batch += 1
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Forward; :meth:`training_step` goes on with backward."""
        if not self.model.training:  # an evaluation
            return super().compute_loss(*args, **kwargs)
        beat.enter(FORWARD, self._micro_batch)
        loss = super().compute_loss(*args, **kwargs)
        beat.enter(BACKWARD, self._micro_batch)
        return loss

    def judge(self) -> None:
        """Look at a step before the optimizer takes it."""
        assert self._step_loss is not None
        self.ties.passing.judge(self, self._step_loss, self.ties.train.global_batch)

    def end_step(self) -> None:
        """A step has ended: its loss is known. After one that was skipped, all is as it was before."""
        self.stopping.end_step(self._watch.stop())
        self._micro_batch = 0
        beat.end_step()
        assert self._step_loss is not None
        loss, self._step_loss = self._step_loss, None
        if self.ties.passing.skipped:
            assert self._random is not None
            _restore_generators(self._random)
            self.ties.passing.undo(self)
            return
        self._last_loss = loss
        if due(self.state.global_step, self.ties.train.check_replicas_every):
            self._check_replicas(self._state())

    def give_up(self) -> None:
        """Put back what the step that was given up has changed, and save what was there before, unless it is saved."""
        self.optimizer.zero_grad()
        self.stopping.restore()
        if self._random is not None:
            _restore_generators(self._random)
        if self._saved != self.state.global_step:
            self._save_checkpoint(self.model, None)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Begin the row of a step; what else the Trainer would log is in our own rows.

        Raises:
            DivergedError: the loss or the gradient norm is not finite.
        """
        if "loss" not in logs:
            return
        step, batch = self.state.global_step, self.ties.train.global_batch
        loss = float(self.ties.engine.mean(self._last_loss))
        steps, seconds = self._watch.read()
        self._row = {
            "step": step, "consumed_samples": self._consumed_samples(), "epoch": self.state.epoch, "loss": loss,
            "lr": logs["learning_rate"], "grad_norm": logs.get("grad_norm", math.nan), "seconds": seconds / steps,
            "samples_per_second": steps * batch / seconds, "sequences_per_second": steps * batch / seconds,
        }  # fmt: skip
        if memory := self.ties.engine.peak_memory():
            self._row["peak_memory"] = memory
        self._row |= self.ties.engine.counters() | self.ties.pace()
        if (guard := self.ties.passing.guard) is not None:
            self._row |= guard.columns()
            guard.follow([self._row])
        norm = self._row["grad_norm"]
        if not (math.isfinite(loss) and (math.isfinite(norm) or not self.ties.train.clip)):
            self._flush()
            what = f"the loss is {loss} and the gradient norm {norm}"
            raise not_finite(step, what, self.ties.checkpoints.way_out(step))

    def _consumed_samples(self) -> int:
        return int((self.state.global_step + self.ties.passing.steps) * self.ties.train.global_batch)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure on the validation split. Training goes on with the random numbers that it would have had without.

        Raises:
            DivergedError: after a step, the loss is not finite.
        """
        state = torch.get_rng_state()  # reading the samples draws one
        try:
            with beat.during("evaluation"):
                measures: dict[str, float] = super().evaluate(*args, **kwargs)
        finally:
            torch.set_rng_state(state)
        step, loss = self.state.global_step, self._val_loss
        if step and loss is not None and not math.isfinite(loss):  # the step's own loss was computed before its update
            self._flush()
            raise not_finite(step, f"the validation loss is {loss}", self.ties.checkpoints.way_out(step))
        return measures

    def _measured(self, prediction: Any) -> dict[str, float]:
        logits = prediction.predictions
        self.logits = logits[0] if isinstance(logits, tuple) else logits
        measures = self.ties.measure(self.logits, prediction.label_ids)
        self._val_loss = measures["loss"]
        self._row |= {f"val_{name}": value for name, value in measures.items()}
        return measures

    def _flush(self) -> None:
        """Hand the row over, once it is whole."""
        row, self._row = self._row, {}
        if "step" in row:
            self.ties.record(row)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._val_loss = None
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._flush()
        if not self.control.should_training_stop:
            beat.begin_step(self.state.global_step + 1)
        self.control.should_log = self.control.should_evaluate = self.control.should_save = False

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """See the Trainer, which takes so many epochs as the steps need; those passed over need more."""
        epochs, *others = super().set_initial_training_values(*args, **kwargs)
        return (sys.maxsize if self.ties.passing.extends_epochs else epochs, *others)

    def _load_callback_state(self) -> None:
        """Called with the state just loaded, whose step the Trainer then takes for the position in the samples;
        :meth:`begin` puts it back."""
        super()._load_callback_state()
        self.state.stateful_callbacks.pop(PASSED, None)
        self._begun_at = self.state.global_step
        self.state.global_step += self.ties.passing.steps

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with loading(resume_from_checkpoint, "the model"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with loading(checkpoint, "optimizer and schedule"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with loading(checkpoint, "the states of random numbers"):
            super()._load_rng_state(checkpoint)

    def save_pretrained(self, folder: str) -> None:
        """Write the model for ``from_pretrained``."""
        self.model.save_pretrained(folder)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """By the core: written aside, hashed, renamed; all ranks call it."""
        self._flush()
        with beat.during(SAVE):
            self._save_whole()

    def _save_whole(self) -> None:
        self.ties.checkpoints.require_finite(self.state.global_step, self._trained())
        state = self._state()
        if self.ties.train.check_replicas_at_save:
            self._check_replicas(state)
        self.ties.checkpoints.save(self.state.global_step, state, self._val_loss, self._write)
        self._saved = self.state.global_step

    def _trained(self) -> dict[str, Any]:
        """Weights and optimizer states by the weights' names."""
        weights = {name: weight for name, weight in self.model.named_parameters() if weight in self.optimizer.state}
        states = {name: self.optimizer.state[weight] for name, weight in weights.items()}
        return {"model": weights, "optimizer": {"state": states}}

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _check_replicas(self, state: dict[str, Any]) -> None:
        """Compare what all ranks hold copies of; ReplicaError where it differs."""
        if self.ties.engine.world_size == 1:  # whose state need not come to the host for it
            return
        model = Parallel(self.model)
        leaves = self._comparable({**replicas.buffers(model), **state})
        replicas.check(self.ties.engine, model, leaves, self.state.global_step)

    def _comparable(self, leaves: dict[str, Any]) -> dict[str, Any]:
        """The form in which :func:`replicas.check` takes tensors."""
        return leaves

    def _write(self, folder: Path) -> None:
        """Write the files of the Trainer itself into a checkpoint."""
        place = str(folder)
        self.save_model(place, _internal_call=True)
        self._save_optimizer_and_scheduler(place)
        self._save_rng_state(place)
        if steps := self.ties.passing.steps:
            self.state.stateful_callbacks[PASSED] = {"args": {}, "attributes": {"steps": steps}}
        if self.args.should_save:
            self.state.save_to_json(str(folder / STATE))


@contextmanager
def loading(checkpoint: str | None, part: str) -> Iterator[None]:
    """Turn everything that transformers and torch raise about a checkpoint's content into one message."""
    try:
        yield
    except RecipeError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"{checkpoint}: {part} in it cannot be loaded ({type(error).__name__}: {text}); it is damaged or of "
            "another model: remove it to continue from the one before, or give another --out"
        ) from error


class Policy(TrainerCallback):  # type: ignore[misc]
    """Decides when to log, evaluate, save and stop, like the core's loop."""

    def __init__(
        self, ties: Ties, begin: Callable[[], None], judge: Callable[[], None], end_step: Callable[[], None],
        asked_to_stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._ties, self._begin, self._judge = ties, begin, judge
        self._end_step, self._asked_to_stop = end_step, asked_to_stop
        self._began, self._saved_at = 0, time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = state.global_step
        self._begin()
        beat.begin_step(state.global_step + 1)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._judge()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        train, ties, step = self._ties.train, self._ties, state.global_step
        self._end_step()
        if ties.passing.skipped:
            return
        ties.stop.defer()  # from now on there is something to save
        stopped = self._asked_to_stop()
        end = train.steps if train.stop_after is None else min(train.steps, self._began + train.stop_after)
        final = stopped or step >= end
        save = final or due(step, train.save_every)
        if train.save_minutes and not save:  # the ranks' clocks differ: one that is due decides for all
            save = ties.engine.any(time.monotonic() - self._saved_at >= 60 * train.save_minutes)
        evaluate = step == train.steps or (not stopped and evaluation_due(train, step, ties.epoch_steps))
        control.should_evaluate, control.should_save = evaluate, save
        skipped = ties.passing.guard is not None and bool(ties.passing.guard.skipped)  # whose samples the row names
        control.should_log = save or evaluate or skipped or due(step, train.log_every)
        control.should_training_stop = final
        if save:
            self._saved_at = time.monotonic()
        ties.advance(step)


def evaluation_due(train: FineTune, step: int, epoch_steps: int) -> bool:
    """True if the run evaluates after ``step``: after each epoch, unless ``train`` sets ``eval_every``."""
    return step == train.steps or due(step, train.eval_every or epoch_steps)


def _generators() -> tuple[Any, ...]:
    """The states of all generators that a checkpoint of the Trainer has."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), devices


def _restore_generators(states: tuple[Any, ...]) -> None:
    python, numpy, cpu, devices = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if devices:
        torch.cuda.set_rng_state_all(devices)


class _Watch:
    """Time of steps, without what is between them: evaluations and checkpoints."""

    def __init__(self) -> None:
        self._steps, self._seconds, self._since = 0, 0.0, 0.0

    def start(self) -> None:
        """A micro batch begins."""
        self._since = self._since or time.perf_counter()

    def stop(self) -> float:
        """A step has ended; return its seconds."""
        seconds = time.perf_counter() - self._since
        self._seconds += seconds
        self._steps, self._since = self._steps + 1, 0.0
        return seconds

    def read(self) -> tuple[int, float]:
        """Steps since the last reading, and their seconds."""
        totals = max(1, self._steps), max(1e-9, self._seconds)
        self._steps, self._seconds = 0, 0.0
        return totals
