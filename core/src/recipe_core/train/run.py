"""One run, from a job to its last step. Read this file first."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from recipe_core.checkpoint.background import Saver
from recipe_core.checkpoint.formats.base import Format, SaveContext
from recipe_core.checkpoint.retention import Trend
from recipe_core.checkpoint.store import Checkpoints
from recipe_core.data.identity import identity_of
from recipe_core.engine import protocol as engines
from recipe_core.engine.agreement import on_rank_0
from recipe_core.engine.compiled import GraphCounter, spare_compiler
from recipe_core.engine.fp8 import to_fp8
from recipe_core.engine.precision import cast, described
from recipe_core.engine.select import engine_problems, spec_of
from recipe_core.errors import ConfigError, ExitCode, PluginError
from recipe_core.files import home
from recipe_core.hooks.loop_specs import OWN_LOSS
from recipe_core.hooks.registry import noun
from recipe_core.hooks.target import as_plugin_error, load
from recipe_core.launch.notice import notice
from recipe_core.launch.stop import StopFlag, StopMode
from recipe_core.launch.watch.heartbeat import SAVE, beat
from recipe_core.layouts.built import build_layout, build_model, build_samples, checked_loss
from recipe_core.layouts.parallel import COUNTED, Parallel, Run, Samples
from recipe_core.layouts.patterns import matching
from recipe_core.settings.job import Job
from recipe_core.train import replicas
from recipe_core.train.compiling import compile_blocks, compiles_blocks
from recipe_core.train.divergence import Guard, RollbackError, Rollbacks
from recipe_core.train.feed import Feed
from recipe_core.train.loop import Trainer
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.metrics.golden import Golden, load_golden
from recipe_core.train.metrics.line import log_line
from recipe_core.train.metrics.meter import Meter
from recipe_core.train.metrics.report import Report, warn
from recipe_core.train.metrics.results import conclude, measured, merged, note_stop, noting_divergence, write_results
from recipe_core.train.metrics.tracker import Trackers
from recipe_core.train.metrics.writer import Metrics
from recipe_core.train.optim import Trainable
from recipe_core.train.recompute import recompute
from recipe_core.train.start import folder as folders
from recipe_core.train.start.resume import TrainingProgress, begin
from recipe_core.train.stopping import Stopping
from recipe_core.train.watch import patient, watched


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
        with nullcontext() if dry_run else noting_divergence(out, job, engine.rank):
            while True:
                try:  # a call, so that all process groups are freed before the engine stops
                    return _run(job, out, engine, stop, dry_run, straggler_row, rollbacks)
                except RollbackError as error:
                    rollbacks.note(error)  # continue outside of `except`, where nothing references the old model


def _run(
    job: Job, out: Path, engine: engines.Engine, stop: StopFlag, dry_run: bool,
    straggler_row: Callable[[], dict[str, float]], rollbacks: Rollbacks,
) -> dict[str, Any]:  # fmt: skip
    beat.enter("building model and data")
    notice("building the model")
    closing = load(job.recipe.closing, f"recipe {job.recipe.name!r}") if job.recipe.closing else None
    graphs = GraphCounter(engine.compiler)
    facts, golden = job.model_facts(), load_golden(job.train)
    run = _context(job, engine, facts.vocabulary if facts else None)
    model, loss = _model(job, run, engine)
    optimizer = _optimizer(job, engine, run, model)
    notice("opening the data")
    samples = build_samples(job.data, run)
    with ExitStack() as stack:
        run_folder = stack.enter_context(folders.open_run_folder(out, job, engine))
        on_rank_0(engine, lambda: run_folder.identify(identity_of(job.data)), out)
        progress, trend = TrainingProgress(), Trend()
        if engine.rank == 0 and not dry_run:
            stop.on_exit = lambda name: note_stop(out, job, name, progress.step, progress.consumed_samples)
        checkpoints, background = _checkpoints(job, out, engine, samples, trend, run_folder)
        beat.enter("loading the checkpoint")
        rollbacks.roll_back(checkpoints, out)
        begun = begin(job, engine, checkpoints, model, optimizer, progress, run_folder.identity)
        progress.consumed_samples = max(progress.consumed_samples, rollbacks.consumed_samples)
        model.on_state_loaded()

        saver = stack.enter_context(
            Saver(checkpoints, background=background, to_host=engine.to_host, traced=engine.traced)
        )
        report = stack.enter_context(
            Report(engine.rank == 0 and not dry_run, job.train.steps, log_line(job, progress.step))
        )
        feed = stack.enter_context(Feed(samples, run, engine.device_loader))
        metrics = stack.enter_context(_metrics(job, out, progress, report, trend)) if engine.rank == 0 else None
        flops = facts.flops_per_sample if facts else None
        meter = Meter(
            engine, run, job.tokens_per_sample(), flops, reductions=model.reductions, every_loss=golden is not None
        )
        comparison_lines = _comparison_lines(job, engine, golden, progress.step)
        report.say("\n".join(filter(None, [_headline(job, out, run, model), begun, *comparison_lines])))
        stopping = Stopping(engine, stop, model.module, model.lag, saver.failed)
        watches = job.train.on_divergence != "stop" and not dry_run
        guard = Guard.of(job.train, engine, out, progress.step, saver.recovery_advice) if watches else None
        stopped = Trainer(
            engine=engine, run=run, model=model, loss=loss, optimizer=optimizer, progress=progress, feed=feed,
            meter=meter, checkpoints=checkpoints, saver=saver, stopping=stopping, report=report, metrics=metrics,
            learning_rate=job.learning_rate(), golden=golden, dry_run=dry_run, straggler_row=straggler_row,
            guard=guard,
        ).train()  # fmt: skip
        with beat.during(SAVE):
            saver.wait()
        stopped = stopped or stopping.now()  # a signal may have come while the last checkpoint was saved
    beat.enter("closing")
    if not stopped:
        stop.mode = StopMode.EXIT
    if dry_run:
        return {"graphs": graphs.read(), "kept": engine.compiler.kept()} if engine.rank == 0 else {}
    return _conclude(
        job, out, engine, run, model, progress, closing, graphs, _signal(engine, stop) if stopped else None,
        run_folder.identity.get("accepted", []),
    )  # fmt: skip


def _metrics(job: Job, out: Path, progress: TrainingProgress, report: Report, trend: Trend) -> Metrics:
    return Metrics(out, progress.step, report.row, warn, trend, Trackers(job.trackers, job.name, job.as_dict()))


def _conclude(
    job: Job, out: Path, engine: engines.Engine, run: Run, model: Parallel, progress: TrainingProgress,
    closing: Callable[..., Any] | None, graphs: GraphCounter, signal: str | None, accepted: list[str],
) -> dict[str, Any]:  # fmt: skip
    """Write and return results.json; it is also written before the recipe's closing, which may fail."""
    on_rank_0(engine, lambda: folders.require_saved(out, progress.step), out)
    compiled: dict[str, Any] = {}
    if job.train.compile or engine.compiler.always:  # after `recipe precompile`, none had to be
        read = graphs.read()
        compiled = {"compilations": read.compiled, "notes": {engine.compiler.name: str(read)}}
    results = {**_results(job, out, run, progress, signal), **compiled} if engine.rank == 0 else _outcome(signal)
    if accepted:
        results["accepted"] = accepted
    if engine.rank == 0:
        write_results(results, out)
    extra: Mapping[str, Any] = {}
    if closing is not None and progress.step == job.train.steps and not signal:
        extra = _closing_results(closing, job, out, run, model)
    if engine.rank == 0:
        results = merged(results, extra)
        folders.require_saved(out, progress.step)
        conclude(results, job, out)
    return results


def _context(job: Job, engine: engines.Engine, vocabulary: int | None) -> Run:
    axes: dict[str, int] = job.layout.config.axes(engine.devices)
    if math.prod(axes.values()) != engine.devices or "dp" not in axes:
        text = " x ".join(f"{name}={size}" for name, size in axes.items())
        raise ConfigError(
            f"layout: {text} needs {math.prod(axes.values())} processes, and this run has {engine.devices}"
        )
    mesh = engine.mesh(axes)
    return Run(
        device=engine.device, mesh=mesh, rank=engine.rank, world_size=engine.devices, local_rank=engine.local_rank,
        dp_rank=mesh["dp"].get_local_rank() if mesh is not None else 0, dp_size=axes["dp"],
        train=job.train, cache=home(), vocabulary=vocabulary, structure=job.structure(),
        local_dp_ranks=axes["dp"] if engine.devices > engine.world_size else 1, engine=engine,
    )  # fmt: skip


def _model(job: Job, run: Run, engine: engines.Engine) -> tuple[Parallel, Any]:
    if not (job.train.compile or engine.compiler.always):
        spare_compiler()
    torch.manual_seed(job.train.seed)  # every rank builds the same weights
    divides = job.layout.spec.divides
    with torch.device("meta") if divides and job.model.spec.deferred else nullcontext():
        module, loss = build_model(job.model, job.model_facts())
    module = cast(module, job.train.precision)
    if job.train.precision == "fp8":
        blocks = run.structure.blocks
        to_fp8(matching(module, blocks).values() if blocks else (), run.device)
    own = spec_of(job.engine).layouts.get(
        job.layout.spec.name
    )  # it moves the module itself, to keep tied parameters tied
    if not divides and own is None:
        module = module.to(run.device)
    options = engine.compile_options() if job.train.compile else {}
    by_blocks = job.train.compile and compiles_blocks(module, run.structure.blocks, run.device.type, options)
    if job.train.compile and not by_blocks:
        module.compile(**options)
    owner = f"engine {job.engine.spec.name!r}" if own else f"layout {job.layout.spec.name!r}"
    target = own or job.layout.spec.build
    model = build_layout(load(target, owner), f"{owner}: {target!r}", module, job.layout.config, run)
    if job.train.activation_checkpointing:
        recompute(model.module, run.structure.blocks, engine.recompute)  # after the layout has replaced the blocks
    if by_blocks:
        compile_blocks(model.module, run.structure.blocks, options)
    model.reductions = {**COUNTED, **job.model.spec.metrics, **job.loss.spec.metrics, "loss": "mean"}
    spec = job.model.spec if job.loss.spec.name == OWN_LOSS else job.loss.spec
    loss = checked_loss(job.loss.build(job.loss.config, loss), f"{noun(spec)} {spec.name!r}: {spec.build!r}")
    return model, model.loss(loss)


def _optimizer(job: Job, engine: engines.Engine, run: Run, model: Parallel) -> torch.optim.Optimizer:
    trainable = Trainable(
        named=model.named_parameters(), train=job.train, structure=run.structure, shard_groups=model.shard_groups,
        traced=engine.traced,
    )  # fmt: skip
    optimizer: torch.optim.Optimizer = job.optimizer.build(job.optimizer.config, trainable)
    model.attach_optimizer(optimizer)
    return optimizer


def _checkpoints(
    job: Job, out: Path, engine: engines.Engine, samples: Samples, trend: Trend, run_folder: folders.RunFolder
) -> tuple[Checkpoints, bool]:
    """The checkpoints of the run folder, and True if their format saves in the background."""
    form: Format
    form, ranks = job.checkpoint.build(job.checkpoint.config), engine.host_ranks()
    checkpoints = Checkpoints(
        out / "checkpoints",
        form,
        ranks,
        job.train.keep,
        warn,
        keep_best=job.train.keep_best,
        notes={"job.yaml": run_folder.text()},
        trend=trend,
        context=SaveContext(group=ranks.group, train=job.train, rate=job.learning_rate(), samples=samples),
        claim=run_folder.restore,
    )
    return checkpoints, form.background


def _headline(job: Job, out: Path, run: Run, model: Parallel) -> str:
    parameters = model.size()  # a collective
    precision = described(run.device.type, job.train.precision)
    return (
        f"{job.name}: {parameters / 1e6:,.2f} M parameters, {job.train.steps:,} steps of {job.train.global_batch:,} "
        f"samples, {run.world_size} x {run.device.type}, {precision}; {out}"
    )


def _comparison_lines(job: Job, engine: engines.Engine, golden: Golden | None, step: int) -> tuple[str, str]:
    # lines for the log
    compared = golden.announcement(step) if golden is not None else ""
    return compared, replicas.announcement(job.train.check_replicas_every, engine.world_size)


def _outcome(signal: str | None) -> dict[str, Any]:
    return {"exit_code": int(ExitCode.STOPPED if signal else ExitCode.FINISHED)}


def _results(job: Job, out: Path, run: Run, progress: TrainingProgress, signal: str | None) -> dict[str, Any]:
    return {
        "recipe": job.name, "step": progress.step, "steps": job.train.steps, "stopped": signal, **_outcome(signal),
        "consumed_samples": progress.consumed_samples, **measured(read_rows(out / METRICS, warn)),
        "world_size": run.world_size, "device": run.device.type, "torch": torch.__version__,
    }  # fmt: skip


def _closing_results(closing: Callable[..., Any], job: Job, out: Path, run: Run, model: Parallel) -> Mapping[str, Any]:
    """The recipe's own results.

    Raises:
        PluginError: ``closing`` raises, or returns what no JSON file can hold.
    """
    code = (
        f"training is complete, and {out}/results.json is written without the recipe's own results; recipe "
        f"{job.recipe.name!r}: {job.recipe.closing!r}"
    )
    with as_plugin_error(code), model.inference() as module:
        extra = closing(module, job, _on_module_device(module, run))
        if run.rank == 0:  # the only one that writes it
            json.dumps(extra)
    if not isinstance(extra, Mapping | None):
        raise PluginError(f"{code} returned {extra!r:.60}; expected a dict, or None")
    return extra or {}


def _signal(engine: engines.Engine, stop: StopFlag) -> str:
    """The signal that stopped the run, of the first rank that got one; a collective."""
    return next(filter(None, engine.gather(stop.signal)), "another rank")


def _on_module_device(module: torch.nn.Module, run: Run) -> Run:
    # A layout may have moved the module to the host.
    first = next(module.parameters(), None)
    return run if first is None or first.device.type == run.device.type else replace(run, device=first.device)
