"""Validation of a trained model outside a run: mean losses over samples of its dataset."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import fields, replace
from typing import Any

import torch

from recipe_core.checkpoint.match.trained import TrainedModel
from recipe_core.engine.loader import Batch, PlainLoader
from recipe_core.errors import ConfigError
from recipe_core.files import home
from recipe_core.hooks.inference import Evaluation
from recipe_core.hooks.specs import Dataset, Part
from recipe_core.hooks.specs.wrapper import outermost
from recipe_core.hooks.target import call
from recipe_core.hooks.train import Train
from recipe_core.layouts.built import checked_loss
from recipe_core.layouts.parallel import COUNTED, Run
from recipe_core.layouts.samples.build import build_samples, checked_read
from recipe_core.settings.facts import data_facts


@torch.no_grad()
def validate(trained: TrainedModel, options: Evaluation) -> dict[str, Any]:
    """Values of the model's loss over the first validation samples of its dataset.

    As in training, means are over micro batches, weighted by their samples. ``options.data`` replaces the dataset's
    setting ``files``; numbers of samples and batch size are the run's by default.

    Raises:
        ConfigError: the dataset is not known, or has no setting ``files``.
        DataError: the data cannot be read.
    """
    options.require_only(trained.model.spec.name, "data", "limit", "batch")
    data, train = known_data(trained, options.data), trained.provenance.train or Train()
    if options.data is not None and data.spec.tokenizer:
        texts = call(data.spec.tokenizer, f"dataset {data.spec.name!r}", data.config) or {}
        trained.require_tokenizer(texts, f"--data {options.data}", options.accept)
    count = options.limit or train.eval_samples
    train = replace(train, eval_every=1, eval_samples=count)
    spec, module = trained.model.spec, trained.module
    read = checked_read(build_samples(data, outside_run(trained, train)), outermost(data), spec.takes)
    loss = checked_loss(trained.loss, spec)
    reductions, total = {**COUNTED, **spec.metrics}, dict[str, float]()
    loader = PlainLoader(trained.device, _unused, train)
    for start, size in _parts(count, options.batch or train.micro_batch):
        batch = loader.place(loader.ready(read("valid", start, size)))
        for name, value in loss(module(batch), batch).items():
            number, reduction = float(value), reductions.get(name, "mean")
            if reduction == "max":
                total[name] = max(total.get(name, number), number)
            elif reduction != "count":
                total[name] = total.get(name, 0.0) + number * (size / count if reduction == "mean" else 1.0)
    return {"data": options.data or "validation", "samples": count, **total}


def _parts(count: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(size, count - start)) for start in range(0, count, size))


def known_data(trained: TrainedModel, files: str | None = None) -> Part[Dataset]:
    """The dataset that the model was trained on; ``files`` replace its own.

    Raises:
        ConfigError: it is not known, or has no setting ``files``.
    """
    data = trained.data
    if data is None:
        raise ConfigError(
            f"{trained.path}: it does not say which dataset it was trained on; name a recipe with it: --recipe "
            "NAME[:VARIANT]"
        )
    if files is None:
        return data
    if "files" not in [field.name for field in fields(data.config)]:
        raise ConfigError(f"--data: dataset {data.spec.name!r} has no setting `files` that would take {files}")
    return replace(data, config=replace(data.config, files=(files,)))


def outside_run(trained: TrainedModel, train: Train) -> Run:
    """The context for building the dataset of a trained model."""
    model, data = trained.model, trained.data
    facts: Any = None
    known = data_facts(data) if model.spec.facts and data is not None else None
    if known is not None:
        facts = call(model.spec.facts, f"model {model.spec.name!r}", model.config, known.sequence)
    return Run(
        device=trained.device, mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1, train=train,
        cache=home(), vocabulary=facts.vocabulary if facts else None,
    )  # fmt: skip


def _unused(start: int) -> Future[list[Batch]]:
    raise AssertionError("batches are placed one by one")
