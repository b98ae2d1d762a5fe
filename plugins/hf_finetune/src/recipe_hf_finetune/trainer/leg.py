"""One fine-tuning of a run: one seed, from trained or from random weights. A run has one leg or several."""

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
from recipe_core.checkpoint.retention import Trend
from recipe_core.checkpoint.store import Checkpoints
from recipe_core.engine.precision import cast
from recipe_core.engine.protocol import SideRanks
from recipe_core.files import remove
from recipe_core.files.documents import read_json
from recipe_core.launch.stop import StopFlag
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.layouts.parallel import StepGivenUp
from recipe_core.settings.job import IDENTITY
from recipe_core.train.divergence import Guard, Returns, RollbackError
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.line import log_line
from recipe_core.train.metrics.report import Report, warn
from recipe_core.train.metrics.tracker import Trackers
from recipe_core.train.metrics.writer import Metrics
from recipe_hf_finetune.checkpoint import STATE, TrainerFormat
from recipe_hf_finetune.data.encode import Encoded
from recipe_hf_finetune.data.splits import Corpus
from recipe_hf_finetune.model import classifier
from recipe_hf_finetune.results import metrics, predictions
from recipe_hf_finetune.settings import settings, steps_per_epoch
from recipe_hf_finetune.trainer.arguments import training_arguments
from recipe_hf_finetune.trainer.fine_tuner import FineTuner, Ties, evaluation_due, loading
from recipe_hf_finetune.trainer.passing import Passing, passed_steps

FINISHED = "finished.json"
MODEL = "model"
"""Folder of the fine-tuned model in the run folder, for ``from_pretrained``."""


@dataclass(frozen=True)
class Leg:
    """One fine-tuning of the run."""

    seed: int
    random: bool
    """From random weights."""
    folder: Path
    first: bool
    """The one whose files lie in the run folder itself: metrics, model, predictions, pictures."""

    @property
    def words(self) -> str:
        """Its name on the console."""
        return f"{'random start' if self.random else 'fine-tuning'}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The parts that all legs of a run share."""

    job: Job
    engine: Engine
    side: SideRanks
    stop: StopFlag
    corpus: Corpus
    tokenizer: Any
    encoded: dict[str, Encoded]
    place: str | None
    """The folder, or name on the hub, of the weights to begin with; None: random ones."""
    config: Callable[[], Any]
    """Makes the model's configuration anew: each model may change its own."""
    pace: Callable[[], Row] = dict
    """Columns about the ranks' speed, for each row of metrics."""
    claim: Callable[[], None] = lambda: None
    """See :class:`recipe_core.checkpoint.store.Checkpoints`."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    """The record of the data and the tokenizer, on rank 0."""
    group: Any = None
    """On a traced engine, the ranks that average their gradients; None where there is one."""


def fine_tune(bench: Bench, leg: Leg) -> dict[str, Any] | None:
    """Train to the end of the schedule, to ``stop_after`` or a signal; go on from what ``leg.folder`` holds.

    Returns:
        The content of ``finished.json`` of the leg; None if it has not come to its end. All ranks return the same.
    """
    job, engine = bench.job, bench.engine
    to = job.train.resume_step if leg.first else None
    if to is not None and _checkpoints(bench, leg, Trend()).return_to(to) and engine.rank == 0:
        remove(leg.folder / FINISHED)  # the result of steps that are to be made again
    if (known := engine.broadcast(_finished(leg.folder, job.train.steps))) is not None:
        return known
    returns = Returns()
    while True:
        try:
            return _train(bench, leg, returns)
        except RollbackError as error:
            returns.note(error)
        gc.collect()  # what the trainer held, before a new one begins


def _train(bench: Bench, leg: Leg, returns: Returns) -> dict[str, Any] | None:
    """See :func:`fine_tune`.

    Raises:
        RollbackError: a step diverged, and the run is to continue from an earlier checkpoint.
    """
    job, engine = bench.job, bench.engine
    trend = Trend()
    checkpoints = _checkpoints(bench, leg, trend)
    returns.go_back(checkpoints, leg.folder)
    begin = _begin(job, leg, checkpoints)
    step, passed = (0, 0) if begin is None else checkpoints.on_rank_0(lambda: _position(begin))
    passed = max(passed, returns.consumed_samples // job.train.global_batch - step)
    with ExitStack() as stack:
        report = stack.enter_context(Report(engine.rank == 0, job.train.steps, log_line(job, step)))
        record: Callable[[Row], None] = lambda row: None  # noqa: E731
        if engine.rank == 0:
            trackers = Trackers(job.trackers, job.name, job.as_dict())
            record = stack.enter_context(Metrics(leg.folder, step, report.row, warn, trend, trackers)).write
        guards = job.train.on_divergence != "stop"
        guard = Guard.of(job.train, engine, leg.folder, step, checkpoints.way_out) if guards else None
        passing = Passing(guard, passed, report.say)
        trainer = stack.enter_context(_held(_trainer(bench, leg, checkpoints, record, report, step, passing)))
        if begin is not None:
            checkpoints.on_rank_0(lambda: classifier.require_same(begin, trainer.model.config))
        report.say(_opening(bench, leg, trainer.model))
        if begin is not None:
            report.say(f"continuing after step {step:,}")
        if step < job.train.steps:
            try:
                trainer.train(resume_from_checkpoint=None if begin is None else str(begin))
            except StepGivenUp:
                trainer.give_up()
            beat.enter("closing")
            step = trainer.state.global_step
        else:
            trainer._load_from_checkpoint(str(begin))
        return _finish(bench, leg, trainer) if step >= job.train.steps else None


def _position(checkpoint: Path) -> tuple[int, int]:
    """Steps applied, and steps passed over."""
    with loading(str(checkpoint), "the Trainer's state"):
        return Manifest.read(checkpoint).step, passed_steps(checkpoint)


def _trainer(
    bench: Bench, leg: Leg, checkpoints: Checkpoints, record: Callable[[Row], None], report: Report, begun: int,
    passing: Passing,
) -> FineTuner:  # fmt: skip
    from transformers import DataCollatorWithPadding, default_data_collator

    job, train, encoded = bench.job, settings(bench.job.train), bench.encoded
    config = classifier.with_labels(bench.config(), bench.corpus)
    if leg.random or bench.place is None:
        module = classifier.random_model(config, leg.seed)
    else:
        module = classifier.pretrained_model(bench.place, config, leg.seed, job.model.config.revision)
    samples = len(encoded["train"])
    epoch = steps_per_epoch(samples, train.micro_batch, bench.engine.world_size, train.global_batch)
    due = 0 < begun < train.steps and evaluation_due(train, begun, epoch)
    ties = Ties(
        engine=bench.engine, train=train, checkpoints=checkpoints, stop=bench.stop, record=record,
        advance=report.advance, pace=bench.pace, epoch_steps=epoch, passing=passing,
        owes_evaluation=due and checkpoints.unevaluated(begun),
        measure=lambda logits, labels: metrics.measure(bench.corpus.task, logits, labels),
    )  # fmt: skip
    kind: Callable[..., FineTuner] = FineTuner
    if bench.engine.traced:
        from recipe_hf_finetune.trainer.traced import TracedFineTuner

        kind = partial(TracedFineTuner, group=bench.group)
    return kind(
        ties=ties, model=cast(module, train.precision),
        args=training_arguments(job, bench.engine, leg.seed, leg.folder),
        train_dataset=encoded["train"], eval_dataset=encoded["validation"], processing_class=bench.tokenizer,
        data_collator=default_data_collator if job.data.config.pads(bench.engine.traced)
        else DataCollatorWithPadding(bench.tokenizer),
    )  # fmt: skip


def _checkpoints(bench: Bench, leg: Leg, trend: Trend) -> Checkpoints:
    job = bench.job
    form = job.checkpoint.build(job.checkpoint.config)
    text = job.as_yaml({IDENTITY: bench.identity} if bench.identity else {})
    return Checkpoints(
        leg.folder / "checkpoints", form, bench.side, job.train.keep, warn, keep_best=job.train.keep_best,
        notes={"job.yaml": text}, trend=trend, claim=bench.claim,
    )  # fmt: skip


def _begin(job: Job, leg: Leg, checkpoints: Checkpoints) -> Path | None:
    """The checkpoint to continue from: the newest of the folder, or the one that ``train.resume`` names."""
    newest, resume = checkpoints.newest(), job.train.resume
    if resume == "none" and newest is not None:
        raise CheckpointError(
            f"train.resume: none, and {newest} is there to go on from; give another --out, or remove it"
        )
    begin = newest
    if newest is None and job.train.resume_path is not None and leg.first:
        begin = Path(resume)
        if problems := checkpoints.problems(begin):
            raise CheckpointError(
                f"train.resume: {begin} is not a whole checkpoint of this recipe: {'; '.join(problems)}"
            )
    if begin is not None:
        checkpoints.on_rank_0(lambda: _require_loadable(begin))
    return begin


def _require_loadable(checkpoint: Path) -> None:
    from transformers import TrainerState

    TrainerFormat().require_training_state(checkpoint)
    with loading(str(checkpoint), "the Trainer's state"):
        TrainerState.load_from_json(str(checkpoint / STATE))


def _finish(bench: Bench, leg: Leg, trainer: FineTuner) -> dict[str, Any]:
    """Metrics of the whole validation split; of the first leg, model, predictions and pictures too."""
    logits = {name: _logits(trainer, split) for name, split in bench.encoded.items() if name != "train"}
    outcome: dict[str, Any] = {"seed": leg.seed, "random_start": leg.random, "step": trainer.state.global_step}
    for name, values in logits.items():
        labels = bench.encoded[name].labels
        if labels is not None:
            measured = metrics.measure(bench.corpus.task, values, np.asarray(labels))
            outcome |= {"metrics": measured} if name == "validation" else {f"{name}_metrics": measured}
    if bench.engine.rank == 0:
        leg.folder.mkdir(parents=True, exist_ok=True)
        if leg.first:
            predictions.write(leg.folder, bench.corpus, logits)
            remove(leg.folder / MODEL)
            with atomic_folder(leg.folder / MODEL) as part:
                trainer.save_pretrained(str(part))
                bench.tokenizer.save_pretrained(str(part))
                Manifest.of(part, format="hf", step=trainer.state.global_step, torch=torch.__version__).write(part)
        write_text(leg.folder / FINISHED, json.dumps(outcome, indent=2) + "\n")
    bench.engine.barrier()
    return outcome


def _logits(trainer: FineTuner, split: Encoded) -> Any:
    """``[samples, labels]``, on every rank."""
    state = trainer.predict(Encoded(split.columns, None))
    return state.predictions[0] if isinstance(state.predictions, tuple) else state.predictions


def _finished(folder: Path, steps: int) -> dict[str, Any] | None:
    try:
        outcome: dict[str, Any] = read_json(folder / FINISHED)
        return outcome if outcome["step"] == steps else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _opening(bench: Bench, leg: Leg, module: Any) -> str:
    from recipe_core.engine.precision import described

    job, train = bench.job, bench.job.train
    parameters = sum(parameter.numel() for parameter in module.parameters())
    samples = len(bench.encoded["train"])
    return (
        f"{job.name}, {leg.words}: {parameters / 1e6:,.2f} M parameters, {train.steps:,} steps of "
        f"{train.global_batch:,} of {samples:,} samples, {bench.engine.world_size} x {bench.engine.device.type}, "
        f"{described(bench.engine.device.type, train.precision)}; {leg.folder}"
    )


@contextmanager
def _held(trainer: FineTuner) -> Iterator[FineTuner]:
    """Drop what holds on to the model and to the process group at the end, before either is needed again."""
    from accelerate.state import AcceleratorState

    try:
        yield trainer
    finally:
        trainer.accelerator.free_memory()
        trainer.model = trainer.model_wrapped = trainer.optimizer = trainer.lr_scheduler = None
        trainer.callback_handler.callbacks.clear()
        AcceleratorState._reset_state(True)
        gc.collect()
