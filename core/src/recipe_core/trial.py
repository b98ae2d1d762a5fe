"""Whether a model can be divided as its layout says: tried on a model without values, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from recipe_core.errors import RecipeError
from recipe_core.job import Job
from recipe_core.layouts.stages import cut
from recipe_core.specs import Model
from recipe_core.tensor_parallel.plan import assign


def division_problems(job: Job, world_size: int) -> list[str]:
    """What is wrong with the tensor plan or the stages of the model; nothing is said of a model that holds values."""
    spec, axes = job.model.spec, job.axes(world_size)
    if not isinstance(spec, Model) or not spec.deferred:
        return []
    return [str(error) for error in _tried(job, axes)]


def _tried(job: Job, axes: dict[str, int]) -> Iterator[RecipeError]:
    structure, tp, pp = job.structure(), axes.get("tp", 1), axes.get("pp", 1)
    with torch.device("meta"):
        module, _ = job.model.build(job.model.config)
    if tp > 1:
        even = getattr(job.layout.config, "data", "ddp") != "ddp" and axes["dp"] > 1
        try:
            assign(module, structure.plan, tp, even=even)
        except RecipeError as error:
            yield error
    if pp > 1:
        try:
            cut(module, structure, 0, pp)
        except RecipeError as error:
            yield error
