"""Checks of a job before it runs: its parts together, the files, the processes and the disk.

``parts.py``: settings that must fit each other; read it first. ``layout.py``: the layout and the processes.
``estimate.py``: memory, operations and checkpoints before a run. ``indices.py``: the indices of data files.
``evaluations.py``: what evaluations take of a model. ``machine.py``: this machine's memory and cores. No torch here:
commands check before they import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError, DiskFullError, RecipeError
from recipe_core.hooks.kinds import PartKind
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import Part
from recipe_core.hooks.target import call_list, load
from recipe_core.hooks.train import Train
from recipe_core.settings.facts import Facts
from recipe_core.settings.job import Draft, Job, draft
from recipe_core.train.start.check.evaluations import evaluation_problems
from recipe_core.train.start.check.indices import index_disk_problems, index_problems
from recipe_core.train.start.check.layout import layout_problems, saving_problems
from recipe_core.train.start.check.parts import (
    batch_problems,
    callback_problems,
    disk_problems,
    document_problems,
    fact_problems,
    format_problems,
    golden_problems,
    optimizer_problems,
    output_problems,
    start_problems,
    transform_problems,
    wrapper_problems,
    writer_problems,
)


def checked_job(
    registry: Registry,
    target: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    world_size: int = 0,
    out: Path | None = None,
    *,
    disk: bool = True,
    here: bool = True,
) -> Job:
    """Resolve a job and check it.

    Args:
        registry: the plugins.
        target: recipe, file or settings, see :func:`recipe_core.settings.job.resolve`.
        overrides: changes of the settings.
        world_size: number of processes; 0: :attr:`Job.processes`.
        out: the run folder, if there is one.
        disk: the disks of this machine must hold the checkpoints and indices.
        here: the run is for this machine.

    Raises:
        ConfigError: settings are wrong or do not fit together; one error names all problems.
        DiskFullError: the only problem is the space on the disk.
        PluginError: the recipe is unknown, or two plugins claim it.
    """
    sketch = draft(registry, target, overrides, world_size)
    processes = world_size or sketch.processes
    format_refusals = writer_problems(sketch.recipe, sketch.parts["checkpoint"]) if "checkpoint" in sketch.parts else ()
    found_problems = [*problems(sketch.parts, sketch.train, sketch.facts, processes, out), *format_refusals]
    if sketch.train is not None:
        found_problems += callback_problems(
            sketch.recipe, sketch.callbacks, sketch.train, sketch.parts.get("checkpoint")
        )
        found_problems += transform_problems(sketch.recipe, sketch.transforms, sketch.train)
        found_problems += evaluation_problems(sketch.recipe, sketch.evaluations, sketch.train, sketch.parts)
    if "data" in sketch.parts:
        found_problems += wrapper_problems(sketch.recipe, sketch.parts["data"])
    if here and sketch.train is not None:
        found_problems += index_problems(sketch.facts, sketch.train)
    full = list(_disk_problems(sketch, out)) if disk and out is not None else []
    job = sketch.job([*found_problems, *(full if found_problems or sketch.problems else ())])
    if full:  # and nothing else is wrong
        raise DiskFullError("\n".join(full))
    if job.recipe.problems:
        recipe_problems = call_list(job.recipe.problems, f"recipe {job.recipe.name!r}", job, processes)
        if recipe_problems:
            raise ConfigError.of(dict.fromkeys(recipe_problems))
    return job


def begin_problems(job: Job, world_size: int, out: Path | None) -> list[str]:
    """Check the model against its tensor plan, its stages and the initial checkpoint, if there are any.

    Imports PyTorch, which takes a second or two.
    """
    begins = job.train.resume_path is not None or job.train.init_from is not None
    continues = out is not None and (out / "job.yaml").exists()
    if not (begins or continues or {"tp", "pp"} & job.axes(world_size).keys()):
        return []
    model_problems: list[str] = load("recipe_core.train.start.preflight:problems", "recipe check")(job, world_size, out)
    return model_problems


def data_problems(job: Job) -> list[str]:
    """Check the data files of the settings for contradictions, and against their manifests."""
    from recipe_core.data.identity import identity_of, names_data, require_consistent

    if not names_data(job.data.config):
        return []
    try:
        require_consistent(identity_of(job.data), job.train.accept)
    except RecipeError as error:
        return [str(error)]
    return []


def problems(
    parts: Mapping[PartKind, Part[Any]],
    train: Train | None,
    facts: Facts,
    world_size: int,
    out: Path | None,
) -> Iterator[str]:
    """Yield problems of the resolved parts; ``out`` is the run folder, if there is one."""
    if "layout" in parts:
        yield from layout_problems(parts["layout"], parts.get("model"), facts, train, world_size)
    yield from fact_problems(facts)
    if train is not None:
        if "engine" in parts:
            from recipe_core.engine.select import engine_problems  # here: `recipe --help` does not need its imports

            yield from engine_problems(parts["engine"], train, parts.get("layout"), world_size)
        if "optimizer" in parts:
            yield from optimizer_problems(parts["optimizer"], train, parts.get("layout"), parts.get("model"))
        yield from golden_problems(train)
        yield from start_problems(train, out)
    if "model" in parts and "data" in parts:
        yield from batch_problems(parts["model"], parts["data"], parts.get("loss"))
        yield from document_problems(parts["model"], facts)
    if "model" in parts and "loss" in parts:
        yield from output_problems(parts["model"], parts["loss"])
    if "checkpoint" in parts and "model" in parts:
        yield from format_problems(parts["checkpoint"], parts["model"])
    if "checkpoint" in parts and "layout" in parts:
        yield from saving_problems(parts["layout"], parts["checkpoint"], world_size)


def _disk_problems(sketch: Draft, out: Path) -> Iterator[str]:
    if sketch.train is not None:
        yield from disk_problems(sketch.facts, sketch.train, sketch.parts.get("optimizer"), sketch.callbacks, out)
        yield from index_disk_problems(sketch.facts, sketch.train)
