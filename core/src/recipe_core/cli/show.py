"""Output of ``recipe ls`` and ``recipe check``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from recipe_core.cli.check.target import Target, figures_of, node_memory, warnings
from recipe_core.engine.machine.environment import variables
from recipe_core.errors import RecipeError
from recipe_core.hooks.kinds import KINDS, NOUNS, Kind
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import DataFacts, Recipe
from recipe_core.hooks.train import Train
from recipe_core.launch.cores import SPIN_LIMITS, spin_choice
from recipe_core.settings.job import Job
from recipe_core.settings.remarks import remarks_of
from recipe_core.train.start.check.estimate import Estimate
from recipe_core.train.start.check.indices import index_rows
from recipe_core.train.start.check.machine import Memory, free_space, memory, scaled, size_of

Row = tuple[str, str]
_FOUND, _MISFIT = ": no problem found", "it will not fit"
_STATES = {"weights": "", "fp32": ", fp32 optimizer states", "master": ", fp32 master weights"}


def listing(registry: Registry, distributions: Mapping[str, str]) -> str:
    """List everything that the command line can name, recipes first; ``distributions``: that of each plugin."""
    by_kind = registry.registrations
    owners = {(kind, name): entry.owner for kind in KINDS for name, entry in sorted(by_kind[kind].items())}
    widths = (max((len(name) for _, name in owners), default=0), max(map(len, owners.values()), default=0))
    blocks = ["\n".join(_block(registry, kind, owners, widths)) for kind in KINDS if registry.registrations[kind]]
    sources = ", ".join(_source(plugin, distributions) for plugin in registry.plugins)
    hints = [
        f"{click.style('Plugins', bold=True)}: {sources or 'none'}",
        "`recipe show NAME[:VARIANT]` prints settings, `recipe run NAME[:VARIANT] section.setting=value ...` trains.",
    ]
    return "\n\n".join([*blocks, "\n".join(hints)])


def _source(plugin: str, distributions: Mapping[str, str]) -> str:
    return f"{plugin} ({distributions[plugin]})" if plugin in distributions else plugin


def _block(
    registry: Registry, kind: Kind, owners: dict[tuple[Kind, str], str], widths: tuple[int, int]
) -> Iterator[str]:
    noun = NOUNS[kind].capitalize()
    yield click.style(f"{noun}{'es' if noun.endswith('s') else 's'}", bold=True)
    for name in registry.names(kind):
        item = registry.registrations[kind][name].item
        first, second = name.ljust(widths[0]), owners[kind, name].ljust(widths[1])
        yield f"  {click.style(first, fg='cyan')}  {click.style(second, dim=True)}  {item.summary}".rstrip()
        if isinstance(item, Recipe) and (variants := _variants(item)):
            yield f"  {'':{widths[0]}}  {'':{widths[1]}}  variants: {variants}"


def _variants(recipe: Recipe) -> str:
    try:
        return ", ".join(recipe.variants)
    except RecipeError as error:  # variants in files, whose folder may be missing
        return str(error)


def needs(job: Job, world_size: int, out: Path, *, passed: bool = True, target: Target | None = None) -> str:
    """Describe the memory, work and disk of a run.

    Args:
        job: the run.
        world_size: number of processes.
        out: the run folder, whose disk is measured.
        passed: the checks found no problem, as the first line then says.
        target: machines of the run, if not this one.
    """
    processes = f"{world_size} process{'es' if world_size > 1 else ''}"
    if target is not None:
        processes += f", {target.processes_per_node} on each of {target.nodes} node{'s' if target.nodes > 1 else ''}"

    def head(verdict: str) -> str:
        return click.style(f"{job.name} on {processes}{verdict if passed else ''}", bold=True)

    model, data, figures = job.facts.model, job.facts.data, figures_of(job, world_size)
    if model is None or data is None or figures is None:
        source = f"dataset {job.data.spec.name!r}" if data is None else f"model {job.model.spec.name!r}"
        unknown = f"What it needs is not known: {source} says nothing of itself (facts)."
        groups = [_engine(job), _environment(job, world_size), [("note", text) for text in remarks_of(job)]]
        return "\n\n".join([head(_FOUND), f"  {unknown}", *_blocks(groups)])
    frozen = f", and {_count(figures.frozen)} frozen" if figures.frozen else ""
    groups = [
        [("parameters", _count(figures.parameters) + frozen), *_engine(job)],
        _memory(job, figures, world_size, target),
        [*_work(job.train, data, figures), *index_rows(job.facts, job.train, here=target is None)],
        _disk(figures, out, target),
        _environment(job, world_size),
        [("note", text) for text in (*remarks_of(job), *_slow_settings(job, target))],
        [("warning", text) for text in (warnings(job, target) if target is not None else ())],
    ]
    blocks = _blocks(groups)
    fits = not any(_MISFIT in block for block in blocks)
    return "\n\n".join([head(_FOUND if fits else ": this machine cannot hold it; the settings are right"), *blocks])


def _blocks(groups: list[list[Row]]) -> list[str]:
    return ["\n".join(f"  {name:20}{text}".rstrip() for name, text in rows) for rows in groups if rows]


def _memory(job: Job, figures: Estimate, world_size: int, target: Target | None) -> list[Row]:
    train = job.train
    rows = [
        ("weights", figures.weights),
        ("gradients", figures.gradients),
        ("optimizer states", figures.optimizer if job.optimizer.spec.facts else None),
        ("activations", figures.activations),
        ("logits", figures.logits),
        *([("between stages", figures.stage_inputs)] if figures.stage_inputs else []),
        ("total", figures.memory),
        *([("in the host's memory", figures.host)] if figures.host else []),
    ]
    widths = train.precision + _STATES[train.optimizer_states]
    inside = ", activation checkpointing" if train.activation_checkpointing else ""
    head = f"of one process ({widths}, micro batch {train.micro_batch}{inside}{_layout(job, world_size)})"
    unknown = f"not known: {job.optimizer.spec.name} says nothing of itself (facts)"
    body = [(f"  {name}", unknown if count is None else _bytes(count)) for name, count in rows]
    if target is not None:
        return [("memory", head), *body, *_on_target(job, figures, target)]
    return [("memory", head), *body, *_on_this_machine(figures, memory(job.train.device), world_size)]


def _on_target(job: Job, figures: Estimate, target: Target) -> list[Row]:
    rows = []
    if job.train.device != "cpu":
        text = _bytes(target.device_memory) if target.device_memory else "  not known; --device-memory GB says it"
        rows.append(("  one device has", f"{text}{_verdict(figures.memory, target.device_memory)}"))
    if needed := node_memory(job, figures, target):
        capacity = f" of {scaled(target.node_memory, 'B')}" if target.node_memory else ""
        processes = f"main memory{capacity}, by {target.processes_per_node} processes"
        rows.append(("  one node needs", f"{_bytes(needed)} {processes}{_verdict(needed, target.node_memory)}"))
    return rows


def _verdict(needed: int, available: int) -> str:
    """A remark if ``needed`` bytes do not fit into ``available`` (0: not known)."""
    return click.style(f"  {_MISFIT}", fg="red", bold=True) if 0 < available < needed else ""


def _on_this_machine(figures: Estimate, available: Memory | None, world_size: int) -> list[Row]:
    if available is None:
        return []
    total = figures.memory * (world_size if available.shared else 1)
    many = available.shared and world_size > 1
    verdict = _verdict(total, available.total)
    need = f", and {world_size} processes here need {scaled(total, 'B')}" if many else ""
    return [(f"  {available.of} has", f"{_bytes(available.total)}{need}{verdict}")]


def _layout(job: Job, world_size: int) -> str:
    """Layout and axes; a layout without a declared division has the figures of the whole model, and is marked so."""
    axes, division = job.axes(world_size), job.division(world_size)[0]
    if division is None and len(axes) < 2:
        return ""  # each process holds the whole model
    parts = " x ".join(f"{name} {size}" for name, size in axes.items() if size > 1)
    whole = ", figures of the whole model" if division is None else ""
    return f", layout {job.layout.spec.name}{f': {parts}' if parts else ''}{whole}"


def _work(train: Train, data: DataFacts, figures: Estimate) -> list[Row]:
    seen = f", {figures.epochs:,.2f} times each of {data.train_samples:,}" if figures.epochs is not None else ""
    return [
        ("one step", f"{figures.tokens_per_step:,} tokens ({train.global_batch:,} samples of {data.sequence:,})"),
        ("", f"{scaled(figures.flops_per_step, 'FLOP')} over all processes"),
        ("whole run", f"{train.steps:,} steps, {figures.samples:,} samples{seen}"),
        *(("other data", _phase(at, train, figures)) for at in data.phases),
    ]


def _phase(at: int, train: Train, figures: Estimate) -> str:
    if at >= figures.samples:
        return f"from sample {at:,} on, which the run does not reach"
    return f"from sample {at:,} on, in step {at // train.global_batch + 1:,}"


def _slow_settings(job: Job, target: Target | None) -> Iterator[str]:
    available = memory(job.train.device) if target is None else None
    if job.train.device != "cpu" and (available is None or not available.shared):
        return
    if job.train.compile:
        yield "train.compile: a CPU compiles the whole model, for a minute or more, and is seldom faster after it"
    if job.train.precision == "fp8":
        yield "train.precision: a CPU emulates fp8, and is many times slower than in fp32"


def _disk(figures: Estimate, out: Path, target: Target | None) -> list[Row]:
    """Space for checkpoints, on the target's disk if there is a target."""
    several = f"{figures.checkpoints} at once need {scaled(figures.disk, 'B')}; " if figures.checkpoints > 1 else ""
    if target is None:
        room = free_space(out) + size_of(out / "checkpoints")  # a run that continues replaces its older ones
        free = f"{scaled(free_space(out), 'B')} are free for {out}/"
    else:
        room = target.disk
        free = f"{scaled(room, 'B')} are free on the target" if room else "the target's disk is not known"
    return [("one checkpoint", f"{scaled(figures.checkpoint, 'B')}; {several}{free}{_verdict(figures.disk, room)}")]


def _engine(job: Job) -> list[Row]:
    return [("engine", f"{job.engine.spec.name}{' (engine=auto)' if job.auto else ''}")]


def _environment(job: Job, world_size: int) -> list[Row]:
    plain = variables(job, world_size, False)
    further = variables(job, world_size, True)[len(plain) :]
    rows = [(f"{v.name}={v.value}", v.why) for v in plain if v.name not in os.environ]
    rows += [(f"{v.name}={os.environ[v.name]}", f"yours; not {v.value}") for v in plain if v.name in os.environ]
    if chosen := spin_choice(os.environ):
        rows.append((_assignments(chosen), "yours; how long waiting threads spin"))
    else:
        rows.append((_assignments(SPIN_LIMITS), "waiting threads soon leave their core; 0 beside other programs"))
    if further:
        rows.append((_assignments({v.name: v.value for v in further}), "over several machines"))
    return [("environment", "set for the run, unless you set them"), *((f"  {text}", f"  {why}") for text, why in rows)]


def _assignments(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _count(number: float) -> str:
    return f"{number / 1e6:,.2f} M" if number >= 1e5 else f"{number:,.0f}"


def _bytes(number: float) -> str:
    return f"{scaled(number, 'B'):>10}"
