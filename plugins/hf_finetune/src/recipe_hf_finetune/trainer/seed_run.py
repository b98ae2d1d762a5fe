"""One fine-tuning: one seed, from trained or from random weights. A run has one or several."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recipe_core import CheckpointError, Engine, Job, atomic_folder, write_text
from recipe_core.checkpoint.manifest import Manifest
from recipe_core.checkpoint.saving.retention import Trend
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.engine.precision import cast
from recipe_core.engine.protocol import HostRanks
from recipe_core.files import remove
from recipe_core.files.documents import read_json
from recipe_core.launch.contention import Contention
from recipe_core.launch.stop import StopFlag
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.layouts.parallel import StepDiscarded
from recipe_core.settings.saved import plugin_record
from recipe_core.settings.sections import IDENTITY, PLUGINS
from recipe_core.train.cadence import Cadence
from recipe_core.train.guards.divergence import Guard, RollbackError, Rollbacks
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.line import log_line
from recipe_core.train.metrics.report import Report, warn
from recipe_core.train.metrics.tracker import Trackers
from recipe_core.train.metrics.writer import Metrics
from recipe_core.train.start.pretrained import require_transforms_of
from recipe_hf_finetune.checkpoint import STATE, TrainerFormat
from recipe_hf_finetune.data.encode import Encoded
from recipe_hf_finetune.data.splits import Corpus
from recipe_hf_finetune.model import classifier
from recipe_hf_finetune.model.adapted import adapt
from recipe_hf_finetune.results import metrics, predictions
from recipe_hf_finetune.settings import settings, steps_per_epoch
from recipe_hf_finetune.trainer.arguments import training_arguments
from recipe_hf_finetune.trainer.fine_tuner import FineTuner, RunContext, loading
from recipe_hf_finetune.trainer.step_skipper import StepSkipper, skipped_steps

FINISHED = "finished.json"
MODEL = "model"
"""Folder of the fine-tuned model in the run folder, for ``from_pretrained``."""


@dataclass(frozen=True)
class SeedRun:
    """One fine-tuning of the run: seed, start and folder."""

    seed: int
    random: bool
    """Starts from random weights."""
    folder: Path
    first: bool
    """Writes metrics, model, predictions and pictures into the run folder itself."""

    @property
    def title(self) -> str:
        """Name on the console and in pictures."""
        return f"{'random start' if self.random else 'fine-tuning'}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Parts that all fine-tunings of a run share."""

    job: Job
    engine: Engine
    side: HostRanks
    stop: StopFlag
    corpus: Corpus
    tokenizer: Any
    encoded: dict[str, Encoded]
    place: str | None
    """Folder, or name on the hub, of the initial weights; None: random ones."""
    config: Callable[[], Any]
    """Returns a copy of the model's configuration, which the model may change."""
    straggler_row: Callable[[], Row] = dict
    """Columns about the ranks' speed, for each row of metrics."""
    claim: Callable[[], None] = lambda: None
    """See :class:`recipe_core.checkpoint.saving.store.Checkpoints`."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """Digests of the data and the tokenizer, on rank 0."""
    group: Any = None
    """On a traced engine, the process group that averages gradients; None on one rank."""


def fine_tune(shared: Shared, seed_run: SeedRun) -> dict[str, Any] | None:
    """Train to the end of the schedule, ``stop_after`` or a signal, continuing the checkpoints in ``seed_run.folder``.

    Returns:
        The content of ``finished.json``; None if the schedule has not ended. The same on all ranks.
    """
    job, engine = shared.job, shared.engine
    resume_step = job.train.resume_step if seed_run.first else None
    if resume_step is not None and _checkpoints(shared, seed_run, Trend()).return_to(resume_step) and engine.rank == 0:
        remove(seed_run.folder / FINISHED)  # its steps run again
    if (outcome := engine.broadcast(_finished(seed_run.folder, job.train.steps))) is not None:
        return outcome
    rollbacks = Rollbacks()
    while True:
        try:
            return _train(shared, seed_run, rollbacks)
        except RollbackError as error:
            rollbacks.note(error)
        gc.collect()  # free the old trainer before a new one is built


def _train(shared: Shared, seed_run: SeedRun, rollbacks: Rollbacks) -> dict[str, Any] | None:
    # RollbackError: a step diverged, and the run has to continue from an earlier checkpoint.
    job, engine = shared.job, shared.engine
    trend = Trend()
    checkpoints = _checkpoints(shared, seed_run, trend)
    rollbacks.roll_back(checkpoints, seed_run.folder)
    begin = _begin(job, seed_run, checkpoints)
    step, skipped = (0, 0) if begin is None else checkpoints.on_rank_0(lambda: _position(begin))
    skipped = max(skipped, rollbacks.consumed_samples // job.train.global_batch - step)
    with ExitStack() as stack:
        report = stack.enter_context(
            Report(engine.rank == 0, job.train.steps, log_line(job, step), Contention.of_run())
        )
        record: Callable[[Row], None] = lambda row: None  # noqa: E731
        if engine.rank == 0:
            trackers = Trackers(job.trackers, job.name, job.as_dict())
            record = stack.enter_context(Metrics(seed_run.folder, step, report.row, warn, trend, trackers)).write
        guard = Guard.of(job.train, engine, seed_run.folder, step, checkpoints.recovery_advice)
        skipper = StepSkipper(guard, skipped, report.say)
        trainer = stack.enter_context(_held(_trainer(shared, seed_run, checkpoints, record, report, step, skipper)))
        if begin is not None:
            checkpoints.on_rank_0(lambda: classifier.require_same(begin, trainer.model.config))
        report.say(_opening(shared, seed_run, trainer.model))
        if begin is not None:
            report.say(f"continuing after step {step:,}")
        if step < job.train.steps:
            try:
                trainer.train(resume_from_checkpoint=None if begin is None else str(begin))
            except StepDiscarded:
                trainer.discard_step()
            beat.enter("closing")
            step = trainer.state.global_step
        else:
            trainer._load_from_checkpoint(str(begin))
        return _finish(shared, seed_run, trainer) if step >= job.train.steps else None


def _position(checkpoint: Path) -> tuple[int, int]:
    """Applied steps, and skipped steps."""
    with loading(str(checkpoint), "the Trainer's state"):
        return Manifest.read(checkpoint).step, skipped_steps(checkpoint)


def _trainer(
    shared: Shared, seed_run: SeedRun, checkpoints: Checkpoints, record: Callable[[Row], None], report: Report,
    resumed_step: int, skipper: StepSkipper,
) -> FineTuner:  # fmt: skip
    from transformers import DataCollatorWithPadding, default_data_collator

    job, train, encoded = shared.job, settings(shared.job.train), shared.encoded
    config = classifier.with_labels(shared.config(), shared.corpus)
    if seed_run.random or shared.place is None:
        module = classifier.random_model(config, seed_run.seed)
    else:
        module = classifier.pretrained_model(shared.place, config, seed_run.seed, job.model.config.revision)
    module = adapt(job.transforms, cast(module, train.precision))
    samples = len(encoded["train"])
    epoch = steps_per_epoch(samples, train.micro_batch, shared.engine.world_size, train.global_batch)
    cadence = Cadence(train, resumed_step, epoch)
    due = 0 < resumed_step < train.steps and cadence.evaluates(resumed_step)
    context = RunContext(
        engine=shared.engine, train=train, checkpoints=checkpoints, stop=shared.stop, record=record,
        advance=report.advance, straggler_row=shared.straggler_row, cadence=cadence, skipper=skipper,
        owes_evaluation=due and checkpoints.unevaluated(resumed_step),
        measure=lambda logits, labels: metrics.measure(shared.corpus.task, logits, labels),
    )  # fmt: skip
    trainer_class: Callable[..., FineTuner] = FineTuner
    if shared.engine.traced:
        from recipe_hf_finetune.trainer.traced import TracedFineTuner

        trainer_class = partial(TracedFineTuner, group=shared.group)
    return trainer_class(
        context=context, model=module,
        args=training_arguments(job, shared.engine, seed_run.seed, seed_run.folder),
        train_dataset=encoded["train"], eval_dataset=encoded["validation"], processing_class=shared.tokenizer,
        data_collator=default_data_collator if job.data.config.pads(shared.engine.traced)
        else DataCollatorWithPadding(shared.tokenizer),
    )  # fmt: skip


def _checkpoints(shared: Shared, seed_run: SeedRun, trend: Trend) -> Checkpoints:
    job = shared.job
    form = job.checkpoint.build(job.checkpoint.config)
    records = {IDENTITY: shared.identity, PLUGINS: plugin_record(job)}
    text = job.as_yaml({name: record for name, record in records.items() if record})
    return Checkpoints(
        seed_run.folder / "checkpoints", form, shared.side, job.train.keep, warn, keep_best=job.train.keep_best,
        notes={"job.yaml": text}, trend=trend, claim=shared.claim,
    )  # fmt: skip


def _begin(job: Job, seed_run: SeedRun, checkpoints: Checkpoints) -> Path | None:
    """The checkpoint to continue from: the newest in the folder, or else the one that ``train.resume`` names."""
    newest, resume = checkpoints.newest(), job.train.resume
    if resume == "none" and newest is not None:
        raise CheckpointError(
            f"train.resume: none, and {newest} is there to go on from; give another --out, or remove it"
        )
    begin = newest
    if newest is None and job.train.resume_path is not None and seed_run.first:
        begin = Path(resume)
        if problems := checkpoints.problems(begin):
            raise CheckpointError(
                f"train.resume: {begin} is not a whole checkpoint of this recipe: {'; '.join(problems)}"
            )
        require_transforms_of(begin, job)
    if begin is not None:
        checkpoints.on_rank_0(lambda: _require_loadable(begin))
    return begin


def _require_loadable(checkpoint: Path) -> None:
    from transformers import TrainerState

    TrainerFormat().require_training_state(checkpoint)
    with loading(str(checkpoint), "the Trainer's state"):
        TrainerState.load_from_json(str(checkpoint / STATE))


def _finish(shared: Shared, seed_run: SeedRun, trainer: FineTuner) -> dict[str, Any]:
    # Metrics of the whole validation split; for the first fine-tuning, model, predictions and pictures too.
    job = shared.job
    logits = {name: _logits(trainer, split) for name, split in shared.encoded.items() if name != "train"}
    outcome: dict[str, Any] = {
        "seed": seed_run.seed,
        "random_start": seed_run.random,
        "step": trainer.state.global_step,
    }
    for name, values in logits.items():
        labels = shared.encoded[name].labels
        if labels is not None:
            measured = metrics.measure(shared.corpus.task, values, np.asarray(labels))
            outcome |= {"metrics": measured} if name == "validation" else {f"{name}_metrics": measured}
    if shared.engine.rank == 0:
        seed_run.folder.mkdir(parents=True, exist_ok=True)
        if seed_run.first:
            predictions.write(seed_run.folder, shared.corpus, logits)
            remove(seed_run.folder / MODEL)
            with atomic_folder(seed_run.folder / MODEL) as part:
                trainer.save_pretrained(str(part), job.transforms)
                shared.tokenizer.save_pretrained(str(part))
                Manifest.of(part, format="hf", step=trainer.state.global_step, torch=torch.__version__).write(part)
        write_text(seed_run.folder / FINISHED, json.dumps(outcome, indent=2) + "\n")
    shared.engine.barrier()
    return outcome


def _logits(trainer: FineTuner, split: Encoded) -> Any:
    state = trainer.predict(Encoded(split.columns, None))
    return state.predictions[0] if isinstance(state.predictions, tuple) else state.predictions


def _finished(folder: Path, steps: int) -> dict[str, Any] | None:
    try:
        outcome: dict[str, Any] = read_json(folder / FINISHED)
        return outcome if outcome["step"] == steps else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opening(shared: Shared, seed_run: SeedRun, module: Any) -> str:
    from recipe_core.engine.precision import described

    job, train = shared.job, shared.job.train
    parameters = sum(parameter.numel() for parameter in module.parameters())
    trained = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
    adapted = f", {trained:,} of them trained ({', '.join(train.transforms)})" if job.transforms else ""
    samples = len(shared.encoded["train"])
    return (
        f"{job.name}, {seed_run.title}: {parameters / 1e6:,.2f} M parameters{adapted}, {train.steps:,} steps of "
        f"{train.global_batch:,} of {samples:,} samples, {shared.engine.world_size} x {shared.engine.device.type}, "
        f"{described(shared.engine.device.type, train.precision)}; {seed_run.folder}"
    )


@contextmanager
def _held(trainer: FineTuner) -> Iterator[FineTuner]:
    """Release every reference to model and process group at the end, before the next fine-tuning needs the memory."""
    from accelerate.state import AcceleratorState

    try:
        yield trainer
    finally:
        trainer.accelerator.free_memory()
        trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = None
        trainer.callback_handler.callbacks.clear()
        AcceleratorState._reset_state(True)
        gc.collect()
