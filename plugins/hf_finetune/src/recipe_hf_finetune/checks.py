"""Checks of ``recipe check`` and ``recipe run`` before anything is loaded. No torch here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from recipe_core import Job, PluginError, RecipeError
from recipe_core.checkpoint.match.same_model import require_consistent, require_same
from recipe_core.engine.select import spec_of
from recipe_core.files.documents import read_json
from recipe_core.train.start.pretrained import checkpoint_at, job_of
from recipe_hf_finetune.model.source import RECIPE, has_tokenizer, ready
from recipe_hf_finetune.settings import SequenceClassifier, settings

_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
"""A name on the hub: one word, or owner/name."""
LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number in fp32."""


def problems(job: Job, world_size: int) -> Iterator[str]:
    """Settings that the Trainer rejects or would not follow, one message each."""
    if job.model.spec.name != "sequence_classifier":
        yield f"model: {job.model.spec.name} is nothing that this recipe fine-tunes; take model=sequence_classifier"
        return
    if job.data.spec.name != "text_classification":
        yield f"data: {job.data.spec.name} has no labels for this recipe; take data=text_classification"
        return
    yield from _parts(job)
    yield from _train(job)
    yield from _traced(job)
    yield from _source(job.model.config)
    yield from _length(job)
    yield from _resume(job)


def _resume(job: Job) -> Iterator[str]:
    if job.train.resume_path is None:
        return
    try:
        require_same(job.model, checkpoint_at(Path(job.train.resume)), {}, "train.resume")
    except RecipeError as error:
        yield str(error)


def _parts(job: Job) -> Iterator[str]:
    if job.layout.spec.name not in ("ddp", "single"):
        yield f"layout: the Trainer of this recipe is data parallel, and {job.layout.spec.name} is not; take layout=ddp"
    if job.checkpoint.spec.name != "hf_trainer":
        yield (
            f"checkpoint: the Trainer saves in its own format, not in {job.checkpoint.spec.name}; take "
            "checkpoint=hf_trainer, and convert the finished run"
        )


def _train(job: Job) -> Iterator[str]:
    train = settings(job.train)
    fixed = {
        "optimizer": "adamw", "optimizer_states": "weights", "stochastic_rounding": False, "min_lr": 0.0,
        "trust_clip": 0.0, "golden": None,
    }  # fmt: skip
    for name, value in fixed.items():
        if getattr(train, name) != value:
            shown = {None: "null", False: "false"}.get(value, value)  # type: ignore[call-overload]
            yield f"train.{name}: the Trainer knows {shown} alone, got {getattr(train, name)}"
    first = train.lr / (1 - train.betas[0])  # the largest first step of Adam, whose moving average starts at 0
    if first > LARGEST:
        yield f"train.lr: a step of up to {first:g} is more than a weight can hold ({LARGEST:g}), got {train.lr:g}"
    if train.precision == "fp8":
        yield "train.precision: the Trainer of this recipe knows no fp8; take bf16_mixed"
    if train.schedule not in ("constant", "linear", "cosine"):
        yield f"train.schedule: expected constant, linear or cosine in this recipe, got {train.schedule}"
    if job.loss.spec.name != "model":
        yield f"loss: the Trainer knows the model's own alone, got {job.loss.spec.name}"
    if train.init_from is not None:
        yield (
            "train.init_from: this recipe begins with the model that model.source names; set "
            f"model.source={train.init_from}"
        )
    if train.random_start and job.model.config.source is None:
        yield "train.random_start: model.source is null, so that the run has random weights anyway; set it to false"


def _traced(job: Job) -> Iterator[str]:
    value = os.environ.get("USE_TORCH_XLA", "0")
    if value.upper() in ("1", "ON", "YES", "TRUE"):
        yield (
            f"USE_TORCH_XLA: {value}, and train.engine says what this recipe trains on: unset it, and take "
            "train.engine=xla for PyTorch/XLA"
        )
    if not spec_of(job.engine).traced:
        return
    name = job.engine.spec.name
    if job.data.config.pad_to_max_length is False:
        yield (
            f"data.pad_to_max_length: false, and train.engine={name} would compile a graph for each length of a batch; "
            "set it to true or null"
        )
    if job.train.activation_checkpointing:
        yield (
            f"train.activation_checkpointing: the Trainer cannot recompute with train.engine={name}; set it to false "
            "and train.micro_batch lower"
        )


def _source(config: SequenceClassifier) -> Iterator[str]:
    source = config.source
    if source is None:
        return
    if source.startswith(RECIPE):
        yield from _recipe(source.removeprefix(RECIPE))
        return
    path = Path(source)
    if not path.exists():
        if not _HUB.fullmatch(source) or source.startswith("."):
            yield f"model.source: {source}: there is no such file or folder, and it is no name of a hub either"
        return
    try:
        folder = ready(source)
        if folder is None:
            stored = checkpoint_at(path)
            if config.recipe is not None:
                require_consistent(job_of(config.recipe).model, stored, {}, f"model.recipe={config.recipe}")
    except RecipeError as error:
        yield f"model.source: {error}"
        return
    if folder is not None and config.tokenizer is None and not has_tokenizer(folder):
        yield (
            f"model.source: {folder}: holds no tokenizer (vocab.txt, tokenizer.json); put it there, or name it: "
            "model.tokenizer=FOLDER"
        )


def _recipe(name: str) -> Iterator[str]:
    try:
        job_of(name)
    except PluginError as error:
        yield (
            f"model.source: {RECIPE}{name}: {error}; install the plugin that has it (pip install "
            f"recipe-{name.partition(':')[0].replace('_', '-')}), name a model instead (model.source=FOLDER), or take "
            "random weights (model.source=null train.random_start=false)"
        )
    except RecipeError as error:
        yield f"model.source: {RECIPE}{name}: {error}"


def _length(job: Job) -> Iterator[str]:
    try:
        folder = ready(job.model.config.source) if job.model.config.source else None
    except RecipeError:  # which _source has reported
        return
    path = Path(folder or "") / "config.json"
    if not folder or not path.is_file():
        return
    try:
        recorded = read_json(path)
        positions = int(recorded.get("max_position_embeddings") or 0)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        yield f"model.source: {path}: cannot be read as JSON ({error})"
        return
    if positions and positions < job.data.config.max_length:
        yield (
            f"data.max_length: samples have up to {job.data.config.max_length:,} tokens, and the model in {folder} "
            f"takes {positions:,}; set data.max_length={positions} or less"
        )
