"""Checks of a run's start on a model without values: the division of the model, the checkpoint and the run folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from recipe_core.checkpoint.locate import steps
from recipe_core.data.identity import identity_of, names_data, recorded_identity
from recipe_core.errors import RecipeError
from recipe_core.hooks.specs import Recipe
from recipe_core.layouts.built import build_model
from recipe_core.layouts.pipeline.stages import cut_stage
from recipe_core.layouts.tensor_parallel.plan import assign
from recipe_core.layouts.transformed import transform
from recipe_core.settings.job import Job
from recipe_core.train.start.destination import begun
from recipe_core.train.start.folder import read_job, require_same_data, require_same_run
from recipe_core.train.start.resume import start_problems


def problems(job: Job, world_size: int, out: Path | None) -> list[str]:
    """Problems with which a run of ``job`` in ``out`` would fail."""
    core_run = job.recipe.run == Recipe.run
    messages = division_problems(job, world_size) if core_run or {"tp", "pp"} & job.axes(world_size).keys() else []
    if out is not None and (out / "job.yaml").exists():
        try:
            require_same_run(out, job)
            _require_same_data(out, job)
        except RecipeError as error:
            messages.append(str(error))
    if core_run and not (out is not None and steps(out)):
        messages += start_problems(job)
    return messages


def _require_same_data(out: Path, job: Job) -> None:
    if begun(out) and names_data(job.data.config):
        require_same_data(out, job, recorded_identity(read_job(out / "job.yaml")), identity_of(job.data))


def division_problems(job: Job, world_size: int) -> list[str]:
    """Problems of the model with its facts, tensor plan and stages; none for models that are not deferred."""
    if not job.model.spec.deferred:
        return []
    return [str(error) for error in _division_errors(job, job.axes(world_size))]


def _division_errors(job: Job, axes: dict[str, int]) -> Iterator[RecipeError]:
    structure, tp, pp = job.structure(), axes.get("tp", 1), axes.get("pp", 1)
    try:
        with torch.device("meta"):
            module, _ = build_model(job.model, job.facts.plain_model)
        module, structure = transform(job.transforms, module, structure)
    except RecipeError as error:
        yield error
        return
    if tp > 1:
        even = job.layout.config.data != "ddp" and axes["dp"] > 1
        try:
            assign(module, structure.plan, tp, sequence=job.layout.config.sequence_parallel, even=even)
        except RecipeError as error:
            yield error
    if pp > 1:
        try:
            cut_stage(module, structure, 0, pp)
        except RecipeError as error:
            yield error
