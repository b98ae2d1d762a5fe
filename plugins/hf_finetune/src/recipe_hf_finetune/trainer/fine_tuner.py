"""Hugging Face's Trainer, with the core's metrics, checkpoints and signals instead of its own."""

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
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.hooks.train import due
from recipe_core.launch.stop import StopFlag, StopMode
from recipe_core.launch.watch.heartbeat import BACKWARD, FORWARD, SAVE, beat
from recipe_core.layouts.parallel import StepDiscarded
from recipe_core.layouts.replicated import fix_bucket_order
from recipe_core.layouts.transformed import Transforms
from recipe_core.train.cadence import Cadence
from recipe_core.train.guards import replicas
from recipe_core.train.guards.divergence import not_finite_error, not_finite_step
from recipe_core.train.metrics.curves import Row
from recipe_core.train.stopping import Stopping
from recipe_hf_finetune.checkpoint import STATE
from recipe_hf_finetune.model.adapted import without_transforms
from recipe_hf_finetune.settings import FineTune
from recipe_hf_finetune.trainer.step_skipper import SKIPPED_STEPS, StepSkipper


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Parts of the run that the Trainer reads and reports to."""

    engine: Engine
    train: FineTune
    checkpoints: Checkpoints
    stop: StopFlag
    record: Callable[[Row], None]
    """Writes a row of metrics; does nothing on ranks other than 0."""
    advance: Callable[[int], None]
    """Called after each step with its number."""
    cadence: Cadence
    measure: Callable[[Any, Any], dict[str, float]]
    """Metrics of logits and labels."""
    straggler_row: Callable[[], Row]
    """Columns about the ranks' speed, for each row of metrics."""
    owes_evaluation: bool
    """The run continues from a checkpoint that a signal saved before the evaluation that was due."""
    skipper: StepSkipper


class FineTuner(Trainer):  # type: ignore[misc]  # whose hints we do not follow
    """A Trainer that evaluates and saves when :class:`CadenceCallback` decides; at most one row of metrics per step.

    Args:
        context: the run.
        model: ``accepts_loss_kwargs`` is set to False: with several micro batches per step, the Trainer would otherwise
            train models whose ``forward`` has ``**kwargs`` on a multiple of the loss.
    """

    def __init__(self, *, context: RunContext, model: Any, **kwargs: Any) -> None:
        model.accepts_loss_kwargs = False
        super().__init__(model=model, compute_metrics=self._measured, **kwargs)
        self.remove_callback(PrinterCallback)
        self.stopping = Stopping(context.engine, context.stop, self.model, 0)
        self.add_callback(CadenceCallback(context, self.begin, self.judge, self.end_step, self.stopping.now))
        self.context = context
        context.skipper.watch(self.accelerator)
        self.logits: Any = None
        """Of the last evaluation, ``[samples, labels]``."""
        self._row: Row = {}
        self._val_loss: float | None = None
        self._step_loss: Tensor | None = None
        self._last_loss = torch.tensor(math.nan)
        self._timer = StepTimer()
        self._micro_batch = 0
        """Number of the next one, within the step."""
        self._random: tuple[Any, ...] | None = None
        """Random states from before the step, where it may be discarded."""
        self._resumed_step: int | None = None
        """Step of the checkpoint to continue from."""
        self._saved_step: int | None = None

    def begin(self) -> None:
        """Run the evaluation that a signal prevented; called before the first step, with everything loaded."""
        if isinstance(self.model_wrapped, DistributedDataParallel):
            fix_bucket_order(self.model_wrapped)
        if self._resumed_step is not None:
            self.state.global_step = self._globalstep_last_logged = self._resumed_step
        if not self.context.owes_evaluation or self.context.engine.any(self.context.stop.signal is not None):
            return
        step = self.state.global_step
        self._row = {"step": step, "consumed_samples": self._consumed_samples()}
        self.evaluate()
        self._flush()
        assert self._val_loss is not None
        self.context.checkpoints.evaluated(step, self._val_loss)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of one micro batch; returns its share of the step's loss.

        Raises:
            StepDiscarded: a rank received a signal during a long step; see :meth:`discard_step`.
        """
        if not self._micro_batch:
            self.stopping.begin_step(self.args.gradient_accumulation_steps)
            self._random = _generators() if self.stopping.may_discard or self.context.skipper.guard else None
        if self.stopping.discards(self._micro_batch):
            raise StepDiscarded
        self._timer.start()
        loss: Tensor = super().training_step(*args, **kwargs)
        self._micro_batch += 1
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Forward; :meth:`training_step` runs backward."""
        if not self.model.training:
            return super().compute_loss(*args, **kwargs)
        beat.enter(FORWARD, self._micro_batch)
        loss = super().compute_loss(*args, **kwargs)
        beat.enter(BACKWARD, self._micro_batch)
        return loss

    def judge(self) -> None:
        """Check loss and gradients of a step before the optimizer applies them."""
        assert self._step_loss is not None
        self.context.skipper.judge(self, self._step_loss, self.context.train.global_batch)

    def end_step(self) -> None:
        """Finish a step: keep its loss; after a skipped step, restore the state from before it."""
        self.stopping.end_step(self._timer.stop())
        self._micro_batch = 0
        beat.end_step()
        assert self._step_loss is not None
        loss, self._step_loss = self._step_loss, None
        if self.context.skipper.skipped:
            assert self._random is not None
            _restore_generators(self._random)
            self.context.skipper.undo(self)
            return
        self._last_loss = loss
        if due(self.state.global_step, self.context.train.check_replicas_every):
            self._check_replicas(self._state())

    def discard_step(self) -> None:
        """Undo the changes of a discarded step, and save a checkpoint unless this step is saved already."""
        self.optimizer.zero_grad()
        self.stopping.restore()
        if self._random is not None:
            _restore_generators(self._random)
        if self._saved_step != self.state.global_step:
            self._save_checkpoint(self.model, None)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Start the row of a step; the Trainer's other logs are ignored, since the rows hold those values.

        Raises:
            DivergedError: the loss or the gradient norm is not finite.
        """
        if "loss" not in logs:
            return
        step, batch = self.state.global_step, self.context.train.global_batch
        loss = float(self.context.engine.mean(self._last_loss))
        steps, seconds = self._timer.read()
        self._row = {
            "step": step, "consumed_samples": self._consumed_samples(), "epoch": self.state.epoch, "loss": loss,
            "lr": logs["learning_rate"], "grad_norm": logs.get("grad_norm", math.nan), "seconds": seconds / steps,
            "samples_per_second": steps * batch / seconds, "sequences_per_second": steps * batch / seconds,
        }  # fmt: skip
        if memory := self.context.engine.peak_memory():
            self._row["peak_memory"] = memory
        self._row |= self.context.engine.counters() | self.context.straggler_row()
        if (guard := self.context.skipper.guard) is not None:
            self._row |= guard.columns()
            guard.add_norms([self._row])
        norm = self._row["grad_norm"]
        if not (math.isfinite(loss) and (math.isfinite(norm) or not self.context.train.clip)):
            self._flush()
            raise not_finite_step(step, loss, norm, self.context.checkpoints.recovery_advice(step))

    def _consumed_samples(self) -> int:
        return int((self.state.global_step + self.context.skipper.steps) * self.context.train.global_batch)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure on the validation split, without changing the random numbers of training.

        Raises:
            DivergedError: the validation loss after a step is not finite.
        """
        state = torch.get_rng_state()  # iterating the data loader draws a number
        try:
            with beat.during("evaluation"):
                measures: dict[str, float] = super().evaluate(*args, **kwargs)
        finally:
            torch.set_rng_state(state)
        step, loss = self.state.global_step, self._val_loss
        if step and loss is not None and not math.isfinite(loss):  # the step's own loss was computed before its update
            self._flush()
            raise not_finite_error(
                step, f"the validation loss is {loss}", self.context.checkpoints.recovery_advice(step)
            )
        return measures

    def _measured(self, prediction: Any) -> dict[str, float]:
        logits = prediction.predictions
        self.logits = logits[0] if isinstance(logits, tuple) else logits
        measures = self.context.measure(self.logits, prediction.label_ids)
        self._val_loss = measures["loss"]
        self._row |= {f"val_{name}": value for name, value in measures.items()}
        return measures

    def _flush(self) -> None:
        row, self._row = self._row, {}
        if "step" in row:
            self.context.record(row)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._val_loss = None
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._flush()
        if not self.control.should_training_stop:
            beat.begin_step(self.state.global_step + 1)
        self.control.should_log = self.control.should_evaluate = self.control.should_save = False

    def set_initial_training_values(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """As the Trainer's, without its limit on epochs where skipped steps may need more of them."""
        epochs, *rest = super().set_initial_training_values(*args, **kwargs)
        return (sys.maxsize if self.context.skipper.extends_epochs else epochs, *rest)

    def _load_callback_state(self) -> None:
        # The Trainer calls this with the loaded state, then takes its step for the position in the samples; begin()
        # restores the step.
        super()._load_callback_state()
        self.state.stateful_callbacks.pop(SKIPPED_STEPS, None)
        self._resumed_step = self.state.global_step
        self.state.global_step += self.context.skipper.steps

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with loading(resume_from_checkpoint, "the model"):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with loading(checkpoint, "optimizer and schedule"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with loading(checkpoint, "the states of random numbers"):
            super()._load_rng_state(checkpoint)

    def save_pretrained(self, folder: str, transforms: Transforms) -> None:
        """Write the model for ``from_pretrained``, with what ``transforms`` added merged into its weights."""
        weights = without_transforms(transforms, self._comparable(self.model.state_dict()))
        self.model.save_pretrained(folder, state_dict=weights)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self._flush()
        with beat.during(SAVE):
            self._save_whole()

    def _save_whole(self) -> None:
        self.context.checkpoints.require_finite(self.state.global_step, self._trained())
        state = self._state()
        if self.context.train.check_replicas_at_save:
            self._check_replicas(state)
        self.context.checkpoints.save(self.state.global_step, state, self._val_loss, self._write)
        self._saved_step = self.state.global_step

    def _trained(self) -> dict[str, Any]:
        weights = {name: weight for name, weight in self.model.named_parameters() if weight in self.optimizer.state}
        states = {name: self.optimizer.state[weight] for name, weight in weights.items()}
        return {"model": weights, "optimizer": {"state": states}}

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _check_replicas(self, state: dict[str, Any]) -> None:
        if self.context.engine.world_size == 1:  # no copy to the host for nothing
            return
        model = Parallel(self.model)
        leaves = self._comparable({**replicas.buffers(model), **state})
        replicas.check(self.context.engine, model, leaves, self.state.global_step)

    def _comparable(self, leaves: dict[str, Any]) -> dict[str, Any]:
        """The form in which :func:`replicas.check` takes tensors."""
        return leaves

    def _write(self, folder: Path) -> None:
        self.save_model(str(folder), _internal_call=True)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_rng_state(str(folder))
        if steps := self.context.skipper.steps:
            self.state.stateful_callbacks[SKIPPED_STEPS] = {"args": {}, "attributes": {"steps": steps}}
        if self.args.should_save:
            self.state.save_to_json(str(folder / STATE))


@contextmanager
def loading(checkpoint: str | None, part: str) -> Iterator[None]:
    """Turn any error of transformers or torch about a checkpoint's content into a CheckpointError."""
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


class CadenceCallback(TrainerCallback):  # type: ignore[misc]
    """Decides when to log, evaluate, save and stop, as the core's loop does."""

    def __init__(
        self, context: RunContext, begin: Callable[[], None], judge: Callable[[], None], end_step: Callable[[], None],
        stop_requested: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._context, self._begin, self._judge = context, begin, judge
        self._end_step, self._stop_requested = end_step, stop_requested
        self._saved_at = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin()
        beat.begin_step(state.global_step + 1)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._judge()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        context, cadence, step = self._context, self._context.cadence, state.global_step
        self._end_step()
        if context.skipper.skipped:
            return
        context.stop.mode = StopMode.SAVE  # from now on there is something to save
        stopped = self._stop_requested()
        final = stopped or step >= cadence.end
        save = final or cadence.saves(step)
        if context.train.save_minutes and not save:  # clocks differ between ranks: if one is due, all save
            save = context.engine.any(cadence.overdue(time.monotonic() - self._saved_at))
        evaluate = step == context.train.steps or (not stopped and cadence.evaluates(step))
        control.should_evaluate, control.should_save = evaluate, save
        guard = context.skipper.guard
        skipped = guard is not None and bool(guard.skipped)  # the row lists their samples
        control.should_log = save or evaluate or skipped or cadence.logs(step)
        control.should_training_stop = final
        if save:
            self._saved_at = time.monotonic()
        context.advance(step)


def _generators() -> tuple[Any, ...]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), devices


def _restore_generators(states: tuple[Any, ...]) -> None:
    python, numpy, cpu, devices = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if devices:
        torch.cuda.set_rng_state_all(devices)


class StepTimer:
    """Seconds spent in steps, without the evaluations and checkpoints between them."""

    def __init__(self) -> None:
        self._steps, self._seconds, self._since = 0, 0.0, 0.0

    def start(self) -> None:
        """Start timing, unless an earlier micro batch of the step did."""
        self._since = self._since or time.perf_counter()

    def stop(self) -> float:
        """End the step; return its seconds."""
        seconds = time.perf_counter() - self._since
        self._seconds += seconds
        self._steps, self._since = self._steps + 1, 0.0
        return seconds

    def read(self) -> tuple[int, float]:
        """Steps since the last call, and their seconds."""
        totals = max(1, self._steps), max(1e-9, self._seconds)
        self._steps, self._seconds = 0, 0.0
        return totals
