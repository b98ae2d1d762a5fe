"""A plugin small enough to read in a minute, which the core's own tests train."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from recipe_core import DataFacts, Dataset, Model, ModelFacts, Recipe, Train, Use, hookimpl, plugin
from recipe_core.hooks.registry import Registry, load


@dataclass(frozen=True, kw_only=True)
class ToyModel:
    """Two layers that classify counted vectors."""

    hidden: int = 8
    dropout: float = 0.25
    poison_after: int | None = None
    """First sample with a loss of nan."""
    poison_until: int | None = None
    """End of these samples, exclusive."""
    counts: bool = False
    """Count positive numbers as real tokens, and two sequences in each sample."""


@dataclass(frozen=True, kw_only=True)
class ToyData:
    """Random vectors, labelled by the sign of their sum."""

    width: int = 6
    seed: int = 0
    left_out: tuple[int, ...] = ()
    """First training sample that the data lacks, and number of such samples."""


@hookimpl
def register_models() -> Iterable[Model]:
    """A model."""
    yield Model(
        name="toy_model",
        build="recipe_core.testing.toy_parts:build_model",
        facts="recipe_core.testing.toy:model_facts",
        config=ToyModel,
        blocks="layers.*",
        free=("dropout", "poison_after", "poison_until", "counts"),
        generate="recipe_core.testing.toy_parts:generate",
        summary="two linear layers with dropout",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """A dataset."""
    yield Dataset(
        name="toy_data",
        build="recipe_core.testing.toy_parts:build_data",
        facts="recipe_core.testing.toy:data_facts",
        config=ToyData,
        summary="random vectors, labelled by the sign of their sum",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe."""
    yield Recipe(
        name="toy",
        summary="two layers on random vectors",
        model=Use("toy_model"),
        data=Use("toy_data"),
        train=Train(steps=8, global_batch=8, micro_batch=2, lr=0.05, log_every=1, eval_every=4, eval_samples=8),
        variants={"tiny": {"train": {"steps": 4}}},
    )


def model_facts(config: ToyModel, sequence: int) -> ModelFacts:
    """Return the facts, counted by hand; ``sequence`` is the width of a vector."""
    weights = sequence * config.hidden + config.hidden * 2
    return ModelFacts(
        parameters=weights + config.hidden + 2,
        flops_per_sample=6.0 * weights,
        activation_values=sequence + 3 * config.hidden,  # inputs of both layers, the output of ReLU, a mask
        recomputed_activation_values=sequence + 3 * config.hidden,
        logits_values=2,
        blocks=2,
        block_parameters=max(sequence * config.hidden + config.hidden, config.hidden * 2 + 2),
    )


def data_facts(config: ToyData) -> DataFacts:
    """Return the facts, without reading data."""
    return DataFacts(sequence=config.width)


def registry(*others: object) -> Registry:
    """Return a registry of this plugin, the core and ``others`` (modules of plugins), without installed plugins."""
    modules: list[object] = [plugin, sys.modules[__name__], *others]
    names = ["core", "toy", *(f"plugin {number}" for number in range(2, len(modules)))]
    return load([(name, partial(lambda module: module, module)) for name, module in zip(names, modules, strict=True)])
