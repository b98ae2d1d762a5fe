"""Checks that settings fit each other, the files, the processes and the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from recipe_core.checkpoint.locate import find, steps
from recipe_core.errors import RecipeError
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import CORE_LOOP, CheckpointFormat, Dataset, Layout, Model, Part, Recipe
from recipe_core.hooks.specs.loop import CallbackSpec, LossSpec, OptimizerSpec, optimizer_facts
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.specs.wrapper import after, gives, nested
from recipe_core.hooks.target import call_list
from recipe_core.hooks.train import Train
from recipe_core.settings.facts import Facts
from recipe_core.train.guards.golden import load_golden
from recipe_core.train.start.check.estimate import estimate
from recipe_core.train.start.check.machine import free_space, scaled, size_of


def fact_problems(facts: Facts) -> Iterator[str]:
    """Yield problems of the data files, and of the model with their samples."""
    try:
        data = facts.data
    except RecipeError as error:
        yield str(error)
        return
    if data is None:
        return
    yield from data.problems
    try:
        model = facts.model
    except RecipeError as error:
        yield str(error)
        return
    if model is None:
        return
    if model.max_sequence is not None and data.sequence > model.max_sequence:
        yield (
            f"data: a sample has {data.sequence:,} tokens and the model takes at most {model.max_sequence:,}; "
            "shorten the samples (data.sequence) or give the model more positions"
        )
    if model.vocabulary is not None and data.vocabulary is not None and data.vocabulary > model.vocabulary:
        yield (
            f"data: its token ids go up to {data.vocabulary - 1:,} and the model knows those below "
            f"{model.vocabulary:,}; raise model.vocabulary to at least {data.vocabulary:,}"
        )


def batch_problems(model: Part[Model], data: Part[Dataset], loss: Part[LossSpec] | None) -> Iterator[str]:
    """Yield a problem if the dataset lacks a tensor that the model or the loss takes, as far as both declare them."""
    consumers = [("model", model.spec.name, model.spec.takes)]
    if loss is not None:
        consumers.append(("loss", loss.spec.name, loss.spec.takes))
    for kind, name, takes in consumers:
        given = gives(data)
        lacking = [tensor for tensor in takes if tensor not in given]
        if not given or not lacking:
            continue
        wrapped = f" with data.wrappers={','.join(part.spec.name for part in data.wrappers)}" if data.wrappers else ""
        yield (
            f"{kind}.use, data.use: {name} takes {', '.join(lacking)}, which {data.spec.name}{wrapped} does not give "
            f"(it gives {', '.join(given)}); choose a {kind} and a dataset that belong together"
        )


def document_problems(model: Part[Model], facts: Facts) -> Iterator[str]:
    """Yield a problem if samples hold documents that the model does not keep apart."""
    try:
        data = facts.data
    except RecipeError:  # fact_problems reports it
        return
    if data is not None and data.document_mask and not model.spec.document_mask:
        yield (
            f"data.document_mask: model {model.spec.name} does not keep the documents of a row apart (it declares no "
            "document_mask); set data.document_mask=false, or choose a model that does"
        )


def output_problems(model: Part[Model], loss: Part[LossSpec]) -> Iterator[str]:
    """Yield a problem if the loss needs what the model's output does not have, as far as both declare it."""
    outputs = model.spec.outputs
    lacking = [name for name in loss.spec.needs if name not in outputs]
    if outputs and lacking:
        yield (
            f"model.use, loss.use: {loss.spec.name} needs {', '.join(lacking)}, which the output of {model.spec.name} "
            f"does not have (it has {', '.join(outputs)}); choose a model and a loss that belong together"
        )


def wrapper_problems(recipe: Recipe, data: Part[Dataset]) -> Iterator[str]:
    """Yield what keeps the run from having its data wrappers, also those of a dataset within its dataset."""
    if recipe.run != CORE_LOOP and data.wrappers:
        yield (
            f"data.wrappers: {recipe.name} trains in a loop of its own, which reads without them; leave them out, and "
            "filter or mix the files that it reads"
        )
    for part in nested(data):
        names = part.spec.gives if isinstance(part.spec, Dataset) else ()
        for wrapper in part.wrappers if names else ():
            lacking = [name for name in wrapper.spec.takes if name not in names]
            if lacking:
                yield (
                    f"data.wrappers: {wrapper.spec.name} takes {', '.join(lacking)}, which {part.spec.name} does not "
                    f"give there (it gives {', '.join(names)}); leave it out, or put the wrapper that adds it before it"
                )
            names = after(names, wrapper.spec)


def format_problems(form: Part[CheckpointFormat], model: Part[Model]) -> Iterator[str]:
    """Yield problems of a run that saves in this format, and of the model with it."""
    spec = form.spec
    if lacking := [part for part in ("model", "optimizer", "progress") if part not in spec.holds]:
        yield (
            f"checkpoint.use: {spec.name} holds no {' and no '.join(lacking)}, so that no run could go on from it; "
            f"choose another, and make it of the finished run: recipe convert RUN FOLDER --to {spec.name}"
        )
    if spec.ranks or spec.adapters_only:
        yield (
            f"checkpoint.use: {spec.name} is for conversion, not for a run to save in; choose dcp, and make it of the "
            f"finished run: recipe convert RUN FOLDER --to {spec.name}"
        )
    if spec.model not in ("", model.spec.name):
        yield f"checkpoint.use: {spec.name} holds the model {spec.model}, and this run's is {model.spec.name}"


def optimizer_problems(
    optimizer: Part[OptimizerSpec], train: Train, layout: Part[Layout] | None, model: Part[Model] | None
) -> Iterator[str]:
    """Yield what the settings ask for and the optimizer does not support."""
    if optimizer.spec.problems:
        owner = f"optimizer {optimizer.spec.name!r}"
        yield from call_list(optimizer.spec.problems, owner, optimizer.config, train, layout, model)


def callback_problems(
    recipe: Recipe, callbacks: Sequence[Part[CallbackSpec]], train: Train, form: Part[CheckpointFormat] | None
) -> Iterator[str]:
    """Yield what keeps the run from having its callbacks."""
    if callbacks and recipe.run != CORE_LOOP:
        yield f"train.callbacks: {recipe.name} trains in a loop of its own, which calls none; leave them out"
    for part in callbacks:
        spec = part.spec
        if spec.saves and form is not None and "callbacks" not in form.spec.holds:
            yield (
                f"checkpoint.use: {form.spec.name} does not hold the state of callback {spec.name}, which a run that "
                "goes on needs; choose dcp"
            )
        if spec.problems:
            for problem in call_list(spec.problems, f"callback {spec.name!r}", part.config, train):
                yield f"callback.{spec.name}: {problem}"


def transform_problems(recipe: Recipe, transforms: Sequence[Part[TransformSpec]], train: Train) -> Iterator[str]:
    """Yield what keeps the run from having its transforms."""
    if transforms and recipe.run != CORE_LOOP and not recipe.applies_transforms:
        yield f"train.transforms: {recipe.name} builds its model by itself, without transforms; leave them out"
    for part in transforms:
        if part.spec.problems:
            owner = f"transform {part.spec.name!r}"
            for problem in call_list(part.spec.problems, owner, part.config, train):
                yield f"transform.{part.spec.name}: {problem}"


def writer_problems(recipe: Recipe, form: Part[CheckpointFormat]) -> Iterator[str]:
    """Yield a problem if another recipe's trainer writes the format: this recipe could not resume from it."""
    spec = form.spec
    if spec.runs not in ("", recipe.name):
        yield (
            f"checkpoint.use: {spec.name} is what the trainer of the recipe {spec.runs} writes; of a run of "
            f"{recipe.name} it would hold no optimizer. Choose dcp, and make it of the finished run: recipe convert "
            f"RUN FOLDER --to {spec.name}"
        )


def start_problems(train: Train, out: Path | None) -> Iterator[str]:
    """Yield a problem if the initial checkpoint is missing; a run that continues in ``out`` needs none."""
    if out is not None and steps(out):
        return
    if train.resume_path is not None:
        yield from _start_problems("resume", train.resume_path)
    elif train.init_from == "required":
        yield (
            "train.init_from: this variant goes on from weights of an earlier run (of phase 1, say), and none are "
            "named; give its run folder, a checkpoint's folder or file, or a Hugging Face folder: "
            "train.init_from=PATH (null: random weights)"
        )
    elif train.init_from is not None:
        yield from _start_problems("init_from", train.init_from)


def _start_problems(setting: str, path: str) -> Iterator[str]:
    try:
        find(load(), Path(path), hashes=False)
    except RecipeError as error:
        yield f"train.{setting}: {error}"


def golden_problems(train: Train) -> Iterator[str]:
    """Yield a problem if the golden curve cannot be read, or has no steps of this run."""
    try:
        load_golden(train)
    except RecipeError as error:
        yield str(error)


def disk_problems(
    facts: Facts,
    train: Train,
    optimizer: Part[OptimizerSpec] | None,
    callbacks: Sequence[Part[CallbackSpec]],
    out: Path,
) -> Iterator[str]:
    """Yield a problem if the checkpoints that exist at once do not fit on the disk of the run folder ``out``."""
    try:
        model, data = facts.model, facts.data
    except RecipeError:  # fact_problems reports it
        return
    if model is None or data is None:
        return
    figures = estimate(model, data, train, optimizer=optimizer_facts(optimizer, train, model, callbacks))
    free = free_space(out) + size_of(out / "checkpoints")  # a run that continues replaces its older ones
    if figures.disk > free:
        count = "1 checkpoint" if figures.checkpoints == 1 else f"{figures.checkpoints} checkpoints"
        each, needed, available = (scaled(size, "B") for size in (figures.checkpoint, figures.disk, free))
        yield (
            f"{out}: there will be {count} of {each} at once, {needed} in all, and {available} are free; free some "
            "space, lower train.keep, or choose another --out"
        )
