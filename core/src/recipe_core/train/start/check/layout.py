"""Checks of a layout against the number of processes, the batch, the model and the samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields

from recipe_core.errors import RecipeError
from recipe_core.hooks.specs import CheckpointFormat, Layout, Model, ModelFacts, Part
from recipe_core.hooks.train import Train
from recipe_core.settings.facts import Facts
from recipe_core.settings.mesh import mesh_axes


def layout_problems(
    layout: Part[Layout], model: Part[Model] | None, facts: Facts, train: Train | None, world_size: int
) -> Iterator[str]:
    """Yield problems that follow from the settings; ``model`` is None if it could not be resolved."""
    try:
        axes = mesh_axes(layout, world_size)
    except ValueError as error:
        yield from (f"layout: {line}" for line in str(error).splitlines())
        return
    except RecipeError as error:
        yield str(error)
        return
    if train is not None:
        yield from _batch_problems(train, axes)
    if layout.spec.divides and model is not None:
        yield from _division_problems(layout, model, facts, axes)


def saving_problems(layout: Part[Layout], form: Part[CheckpointFormat], world_size: int) -> Iterator[str]:
    """Yield a problem if the format cannot save the parameters of a pipeline."""
    try:
        stages = mesh_axes(layout, world_size).get("pp", 1)
    except (RecipeError, ValueError):  # layout_problems reports it
        return
    if stages > 1 and not form.spec.stages:
        yield (
            f"checkpoint.use: {form.spec.name} is written by one process, and under layout={layout.spec.name} none has "
            "the parameters of all stages; take checkpoint=dcp, and make the other format of the finished run: "
            f"recipe convert RUN FOLDER --to {form.spec.name}"
        )


def _batch_problems(train: Train, axes: dict[str, int]) -> Iterator[str]:
    ranks, stages = axes["dp"], axes.get("pp", 1)
    at_once = train.micro_batch * ranks
    product = f"train.micro_batch {train.micro_batch} x {ranks} data-parallel rank{'s' if ranks > 1 else ''}"
    batches = {"global_batch": train.global_batch}
    if train.eval_every:
        batches["eval_samples"] = train.eval_samples
    for name, batch in batches.items():
        if batch % at_once:
            below, above = batch // at_once * at_once, (batch // at_once + 1) * at_once
            fitting = f"{below} or {above}" if below else f"{above}, or a smaller train.micro_batch"
            yield f"train.{name}: {batch} does not divide by {at_once} ({product}); take {fitting}"
    if stages > 1 and train.global_batch // at_once < stages:
        yield (
            f"train.global_batch: {train.global_batch} makes {train.global_batch // at_once} micro batches a step "
            f"({product}), and a pipeline of {stages} stages needs as many as it has stages; take at least "
            f"{stages * at_once}, or a smaller train.micro_batch"
        )


def _division_problems(layout: Part[Layout], model: Part[Model], facts: Facts, axes: dict[str, int]) -> Iterator[str]:
    spec, tp, pp = model.spec, axes.get("tp", 1), axes.get("pp", 1)
    if tp > 1 and not spec.plan:
        yield f"layout.tp: model {spec.name!r} has no tensor plan; choose layout=ddp, zero1 or fsdp"
    refused = tp > 1 and bool(spec.plan) and layout.config.sequence_parallel and not spec.sequence_parallel
    if refused:
        yield _no_sequence_parallelism(layout, spec)
    if pp > 1 and spec.structure(model.config).stages is None:
        yield f"layout.pp: model {spec.name!r} names no stages of a pipeline; choose layout=ddp, zero1 or fsdp"
    try:
        model_facts, data = facts.model, facts.data
    except RecipeError:  # fact_problems reports it
        return
    if model_facts is None:
        return
    if pp > 1 and model_facts.blocks < pp:
        blocks = model_facts.blocks
        yield f"layout.pp: {pp} stages need as many blocks, and the model has {blocks}; take at most that many"
    if tp > 1:
        yield from _degree_problems(model_facts, tp)
        yield from _vocabulary_problems(layout, model, model_facts, axes)
        if layout.config.sequence_parallel and not refused and data is not None and data.sequence % tp:
            yield (
                f"layout.sequence_parallel: a sample of {data.sequence:,} tokens does not divide by {tp} (layout.tp); "
                "set it to false, or take samples of another length"
            )


def _no_sequence_parallelism(layout: Part[Layout], model: Model) -> str:
    setting = next((one for one in fields(layout.config) if one.name == "sequence_parallel"), None)
    default = f", which is the default of layout={layout.spec.name}" if setting is None or setting.default else ""
    remedy = "choose another layout" if setting is None else "set layout.sequence_parallel=false"
    return (
        f"layout.sequence_parallel: true{default}, and model {model.name!r} can be tensor parallel, but not sequence "
        f"parallel; {remedy}"
    )


def _degree_problems(model: ModelFacts, tp: int) -> Iterator[str]:
    fitting = math.gcd(*model.divisible.values()) if model.divisible else 0
    degrees = [degree for degree in range(1, fitting + 1) if fitting % degree == 0]
    taken = f"take {', '.join(map(str, degrees[:-1]))} or {degrees[-1]}" if len(degrees) > 1 else "nothing divides all"
    for name, count in model.divisible.items():
        if count % tp:
            yield f"layout.tp: {tp} does not divide {name}, which is {count:,}; {taken}, or change {name}"


def _vocabulary_problems(
    layout: Part[Layout], model: Part[Model], model_facts: ModelFacts, axes: dict[str, int]
) -> Iterator[str]:
    """FSDP shards into parts of equal size only."""
    tp, shared = axes["tp"], layout.config.data != "ddp"
    cut = any(role.startswith("vocabulary") for role in model.spec.structure(model.config).plan.values())
    if cut and shared and axes["dp"] > 1 and (model_facts.vocabulary or 0) % tp:
        above = ((model_facts.vocabulary or 0) // tp + 1) * tp
        yield (
            f"layout.tp: {tp} does not divide model.vocabulary, which is {model_facts.vocabulary:,}, and "
            f"layout.data={layout.config.data} shares out parts of one size only; take layout.data=ddp, or "
            f"model.vocabulary={above}"
        )
