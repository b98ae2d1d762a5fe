"""One run, from a job to its last step. Read this file first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from recipe_core.checkpoint.formats.base import SaveContext
from recipe_core.checkpoint.formats.build import build_format
from recipe_core.checkpoint.remote.checkpoints import RemoteCheckpoints
from recipe_core.checkpoint.saving.background import Saver
from recipe_core.checkpoint.saving.retention import Trend
from recipe_core.checkpoint.saving.store import Checkpoints
from recipe_core.data.identity import identity_of
from recipe_core.engine import protocol as engines
from recipe_core.engine.agreement import on_rank_0
from recipe_core.engine.compiled import GraphCounter
from recipe_core.engine.precision import described, threads
from recipe_core.engine.select import engine_problems
from recipe_core.errors import ConfigError, ExitCode, PluginError
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.specs.wrapper import outermost
from recipe_core.hooks.target import as_plugin_error, load
from recipe_core.launch.contention import Contention
from recipe_core.launch.notice import notice
from recipe_core.launch.stop import StopFlag, StopMode
from recipe_core.launch.watch.heartbeat import SAVE, beat
from recipe_core.layouts.parallel import Loss, Parallel, Run
from recipe_core.layouts.samples.build import build_samples, checked_read
from recipe_core.settings.job import Job
from recipe_core.train.building.build import build_optimizer, build_parallel, build_run
from recipe_core.train.cadence import Cadence
from recipe_core.train.callbacks.callback import CallbackRun
from recipe_core.train.callbacks.callbacks import Callbacks
from recipe_core.train.feed import Feed
from recipe_core.train.guards import replicas
from recipe_core.train.guards.divergence import Guard, RollbackError, Rollbacks
from recipe_core.train.guards.golden import Golden, load_golden
from recipe_core.train.loop import Trainer
from recipe_core.train.metrics.curves import METRICS, Row, read_rows
from recipe_core.train.metrics.evaluations.access import RunAccess
from recipe_core.train.metrics.evaluations.measuring import Evaluations
from recipe_core.train.metrics.line import log_line
from recipe_core.train.metrics.meter import Meter
from recipe_core.train.metrics.recorder import Recorder
from recipe_core.train.metrics.report import Report, warn
from recipe_core.train.metrics.results import conclude, measured, merged, note_stop, noting_divergence, write_results
from recipe_core.train.metrics.tracker import Trackers
from recipe_core.train.metrics.writer import Metrics
from recipe_core.train.saving import Saving
from recipe_core.train.start import folder as folders
from recipe_core.train.start.resume import TrainingProgress, begin
from recipe_core.train.start.stored import stored_run
from recipe_core.train.start.watch import patient, watched
from recipe_core.train.step import StepErrors, Stepper
from recipe_core.train.stopping import Stopping, announcement


def run(job: Job, out: Path, *, dry_run: bool = False) -> dict[str, Any]:
    """Build every part of ``job`` in order, continue from the checkpoint in ``out``, train; return results.json.

    Ranks other than 0 return its ``exit_code`` only. A ``dry_run`` saves and shows nothing; rank 0 returns the compiled
    graphs.
    """
    # The command has checked this; other callers may not have.
    problems = list(engine_problems(job.engine, job.train, job.layout))
    if problems:
        raise ConfigError.of(problems)
    with (
        StopFlag(StopMode.EXIT) as stop,
        watched(job.train, out) as watchdog,
        engines.start(patient(job.train), job.engine, job.layout) as engine,
    ):
        straggler_row = watchdog.row if job.train.log_stragglers else dict
        folders.agree(out, job, engine)
        rollbacks = Rollbacks()
        with stored_run(out, engine) as remote, nullcontext() if dry_run else noting_divergence(out, job, engine.rank):
            while True:
                try:  # a call, so that all process groups are freed before the engine stops
                    return _run(job, out, engine, stop, dry_run, straggler_row, rollbacks, remote)
                except RollbackError as error:
                    rollbacks.note(error)  # continue outside of `except`, where nothing references the old model


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run that is built, and continues from its checkpoint."""

    job: Job
    out: Path
    engine: engines.Engine
    run: Run
    trainer: Trainer
    compiled: bool
    graphs: GraphCounter
    closing: Callable[..., Any] | None
    """The recipe's function after the last step."""
    accepted: list[str]
    """Differences of the data from the run's record that the user accepted."""

    def train(self) -> bool:
        """Train, and wait for the last checkpoint; True if a signal stopped the run. The same on all ranks."""
        stopped = self.trainer.train()
        with beat.during(SAVE):
            self.trainer.saving.saver.wait()
        return stopped or self.trainer.stopping.now()  # a signal may have come during the last save


def _run(
    job: Job, out: Path, engine: engines.Engine, stop: StopFlag, dry_run: bool,
    straggler_row: Callable[[], Row], rollbacks: Rollbacks, remote: RemoteCheckpoints | None,
) -> dict[str, Any]:  # fmt: skip
    with ExitStack() as stack:
        training = _build(job, out, engine, stop, dry_run, straggler_row, rollbacks, remote, stack)
        stopped = training.train()
    beat.enter("closing")
    if not stopped:
        stop.mode = StopMode.EXIT
    if dry_run:
        return {"graphs": training.graphs.read(), "kept": engine.compiler.kept()} if engine.rank == 0 else {}
    return _conclude(training, _signal(engine, stop) if stopped else None)


def _build(
    job: Job, out: Path, engine: engines.Engine, stop: StopFlag, dry_run: bool,
    straggler_row: Callable[[], Row], rollbacks: Rollbacks, remote: RemoteCheckpoints | None, stack: ExitStack,
) -> Training:  # fmt: skip
    beat.enter("building model and data")
    notice("building the model")
    closing = load(job.recipe.closing, f"recipe {job.recipe.name!r}") if job.recipe.closing else None
    graphs = GraphCounter(engine.compiler)  # before anything is compiled
    facts, golden = job.model_facts(), load_golden(job.train)
    run = build_run(job, engine, facts.vocabulary if facts else None)
    model, loss = build_parallel(job, run, engine)
    optimizer = build_optimizer(job, run, model, engine)
    notice("opening the data")
    samples = build_samples(job.data, run)
    run_folder = stack.enter_context(folders.open_run_folder(out, job, engine))
    on_rank_0(engine, lambda: run_folder.identify(identity_of(job.data)), out)
    progress, trend = TrainingProgress(), Trend()
    if engine.rank == 0 and not dry_run:
        stop.on_exit = lambda name: note_stop(out, job, name, progress.step, progress.consumed_samples)
    learning_rate = job.learning_rate()
    context = SaveContext(train=job.train, rate=learning_rate, samples=samples)
    checkpoints, background = _checkpoints(job, out, engine, context, trend, run_folder, remote)
    beat.enter("loading the checkpoint")
    rollbacks.roll_back(checkpoints, out)
    callbacks = _callbacks(job, out, engine, run, model, optimizer)
    begun = begin(job, engine, checkpoints, model, optimizer, progress, callbacks, run_folder.identity)
    progress.consumed_samples = max(progress.consumed_samples, rollbacks.consumed_samples)
    model.on_state_loaded()
    saver = stack.enter_context(Saver(checkpoints, background=background, to_host=engine.to_host, traced=engine.traced))
    line, shown = log_line(job, progress.step), engine.rank == 0 and not dry_run
    report = stack.enter_context(Report(shown, job.train.steps, line, Contention.of_run()))
    read = checked_read(samples, outermost(job.data), {*job.model.spec.takes, *job.loss.spec.takes})
    feed = stack.enter_context(Feed(read, run, engine.device_loader, callbacks.global_batch))
    evaluations = _evaluations(() if dry_run else job.evaluations, job, out, engine, run, model, loss, feed, progress)
    writer = stack.enter_context(_metrics(job, out, progress, report, trend)) if engine.rank == 0 else None
    head, compared = _headline(job, out, run, model), _comparison_lines(job, golden, progress.step, engine.world_size)
    report.say("\n".join(filter(None, [head, begun, *compared])))
    stopping = Stopping(engine, stop, model.module, model.lag, saver.failed)
    stop.on_first = lambda name: report.say(announcement(name, progress.step + 1, may_discard=stopping.may_discard))
    guard = None if dry_run else Guard.of(job.train, engine, out, progress.step, saver.recovery_advice)
    trainer = Trainer(
        ranks=engine, cadence=Cadence(job.train, progress.step), progress=progress, stopping=stopping, report=report,
        stepper=Stepper(
            engine=engine, run=run, model=model, loss=loss, optimizer=optimizer, learning_rate=learning_rate,
            feed=feed, progress=progress, stopping=stopping, callbacks=callbacks, before_update=saver.before_update,
            guard=guard, say=report.say, errors=StepErrors.of(job), evaluations=evaluations,
        ),
        recorder=Recorder(
            progress=progress, meter=_meter(job, engine, run, model, golden), writer=writer, golden=golden,
            guard=guard, straggler_row=straggler_row, recovery_advice=saver.recovery_advice,
        ),
        saving=Saving(
            engine=engine, model=model, optimizer=optimizer, progress=progress, callbacks=callbacks, saver=saver,
            dry_run=dry_run,
        ),
    )  # fmt: skip
    return Training(
        job=job, out=out, engine=engine, run=run, trainer=trainer, graphs=graphs, closing=closing,
        compiled=model.compiled or engine.compiler.always, accepted=run_folder.identity.get("accepted", []),
    )  # fmt: skip


def _callbacks(
    job: Job, out: Path, engine: engines.Engine, run: Run, model: Parallel, optimizer: torch.optim.Optimizer
) -> Callbacks:  # fmt: skip
    callbacks = Callbacks()
    here = CallbackRun(run=run, model=model, optimizer=optimizer, engine=engine, folder=out)
    callbacks.build(job.callbacks, here, warn)
    return callbacks


def _evaluations(
    parts: Sequence[Part[EvaluationSpec]], job: Job, out: Path, engine: engines.Engine, run: Run, model: Parallel,
    loss: Loss, feed: Feed, progress: TrainingProgress,
) -> Evaluations:  # fmt: skip
    evaluations = Evaluations(warn)
    access = RunAccess(
        job=job, folder=out, engine=engine, run=run, parallel=model, loss_function=loss, feed=feed, progress=progress
    )
    evaluations.build(parts, access)
    return evaluations


def _meter(job: Job, engine: engines.Engine, run: Run, model: Parallel, golden: Golden | None) -> Meter:
    facts = job.model_facts()
    return Meter(
        engine, run, job.tokens_per_sample(), facts.flops_per_sample if facts else None, reductions=model.reductions,
        every_loss=golden is not None,
    )  # fmt: skip


def _metrics(job: Job, out: Path, progress: TrainingProgress, report: Report, trend: Trend) -> Metrics:
    return Metrics(out, progress.step, report.row, warn, trend, Trackers(job.trackers, job.name, job.as_dict()))


def _conclude(training: Training, signal: str | None) -> dict[str, Any]:
    """Write and return results.json; it is also written before the recipe's closing, which may fail."""
    job, out, engine, progress = training.job, training.out, training.engine, training.trainer.progress
    on_rank_0(engine, lambda: folders.require_saved(out, progress.step), out)
    results = _outcome(signal)
    if engine.rank == 0:
        results = _results(job, out, training.run, progress, signal)
    if training.compiled:  # after `recipe precompile`, no graph had to be
        graphs = training.graphs.read()
        if engine.rank == 0:
            results |= {"compilations": graphs.compiled, "notes": {engine.compiler.name: str(graphs)}}
    if training.accepted:
        results["accepted"] = training.accepted
    reason = training.trainer.stepper.callbacks.reason
    if reason:
        results["ended_by"] = reason
    if engine.rank == 0:
        write_results(results, out)
    extra: Mapping[str, Any] = {}
    if training.closing is not None and (progress.step == job.train.steps or reason) and not signal:
        extra = _closing_results(training)
    if engine.rank == 0:
        results = merged(results, extra)
        folders.require_saved(out, progress.step)
        conclude(results, job, out)
    return results


def _checkpoints(
    job: Job, out: Path, ranks: engines.Communication, context: SaveContext, trend: Trend,
    run_folder: folders.RunFolder, remote: RemoteCheckpoints | None,
) -> tuple[Checkpoints, bool]:  # fmt: skip
    """The checkpoints of the run folder, and True if their format saves in the background."""
    form, host_ranks = build_format(job.checkpoint), ranks.host_ranks()
    checkpoints = Checkpoints(
        out / "checkpoints",
        form,
        host_ranks,
        job.train.keep,
        warn,
        keep_best=job.train.keep_best,
        notes={"job.yaml": run_folder.text()},
        trend=trend,
        context=replace(context, group=host_ranks.group),
        claim=run_folder.restore,
        remote=remote,
    )
    return checkpoints, form.background


def _headline(job: Job, out: Path, run: Run, model: Parallel) -> str:
    parameters = model.size()  # a collective
    precision = described(run.device.type, job.train.precision) + ", compiled" * model.compiled
    size = f"{(parameters + model.frozen_size() if job.transforms else parameters) / 1e6:,.2f} M parameters"
    trained = f", {parameters:,} of them trained ({', '.join(job.train.transforms)})" if job.transforms else ""
    return (
        f"{job.name}: {size}{trained}, {job.train.steps:,} steps of {job.train.global_batch:,} samples; {out}\n"
        f"{run.world_size} x {run.device.type}{threads(run.device.type)}, {precision}"
    )


def _comparison_lines(job: Job, golden: Golden | None, step: int, world_size: int) -> tuple[str, str]:
    # lines for the log
    compared = golden.announcement(step) if golden is not None else ""
    return compared, replicas.announcement(job.train.check_replicas_every, world_size)


def _outcome(signal: str | None) -> dict[str, Any]:
    return {"exit_code": int(ExitCode.STOPPED if signal else ExitCode.FINISHED)}


def _results(job: Job, out: Path, run: Run, progress: TrainingProgress, signal: str | None) -> dict[str, Any]:
    return {
        "recipe": job.name, "step": progress.step, "steps": job.train.steps, "stopped": signal, **_outcome(signal),
        "consumed_samples": progress.consumed_samples, **measured(read_rows(out / METRICS, warn)),
        "eval_samples": job.train.eval_samples, "world_size": run.world_size, "device": run.device.type,
        "torch": torch.__version__,
    }  # fmt: skip


def _closing_results(training: Training) -> Mapping[str, Any]:
    """The recipe's own results.

    Raises:
        PluginError: ``closing`` raises, or returns what no JSON file can hold.
    """
    job, run = training.job, training.run
    code = (
        f"training is complete, and {training.out}/results.json is written without the recipe's own results; recipe "
        f"{job.recipe.name!r}: {job.recipe.closing!r}"
    )
    assert training.closing is not None
    with as_plugin_error(code), training.trainer.stepper.model.inference() as module:
        extra = training.closing(module, job, _on_module_device(module, run))
        if run.rank == 0:  # the only one that writes it
            json.dumps(extra)
    if not isinstance(extra, Mapping | None):
        raise PluginError(f"{code} returned {extra!r:.60}; expected a dict, or None")
    return extra or {}


def _signal(ranks: engines.Ranks, stop: StopFlag) -> str:
    """The signal that stopped the run, of the first rank that got one; a collective."""
    return next(filter(None, ranks.gather(stop.signal)), "another rank")


def _on_module_device(module: torch.nn.Module, run: Run) -> Run:
    # A layout may have moved the module to the host.
    first = next(module.parameters(), None)
    return run if first is None or first.device.type == run.device.type else replace(run, device=first.device)
