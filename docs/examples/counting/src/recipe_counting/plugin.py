"""This plugin's contributions. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import DataFacts, Dataset, Model, ModelFacts, Recipe, Train, Use, hookimpl


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A recurrent network that reads digits."""

    hidden: int = 64

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"hidden: expected at least 1, got {self.hidden}")


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Digits that go up by a constant step, modulo 10."""

    length: int = 16
    """Digits in one sample."""


def model_facts(config: Reader, sequence: int) -> ModelFacts:
    """Counted by hand, for a sample of ``sequence`` digits: embedding, GRU, output."""
    hidden = config.hidden
    weights = 6 * hidden * hidden + 10 * hidden
    return ModelFacts(
        parameters=weights + 10 * hidden + 6 * hidden + 10,
        flops_per_sample=6.0 * sequence * weights,
        activation_values=sequence * 9 * hidden,
        recomputed_activation_values=sequence * 9 * hidden,
        logits_values=sequence * 10,
        vocabulary=10,
    )


def data_facts(config: Digits) -> DataFacts:
    """Nothing is read: the samples are made as they are needed."""
    return DataFacts(sequence=config.length, vocabulary=10)


@hookimpl
def register_models() -> Iterable[Model]:
    """The network."""
    yield Model(
        name="reader",
        build="recipe_counting.model:build",
        facts="recipe_counting.plugin:model_facts",
        config=Reader,
        summary="a recurrent network that reads digits",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """The dataset."""
    yield Dataset(
        name="digits",
        build="recipe_counting.data:build",
        facts="recipe_counting.plugin:data_facts",
        config=Digits,
        summary="digits that go up by a constant step",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """Both together."""
    yield Recipe(
        name="counting",
        summary="learn to go on counting",
        model=Use("reader"),
        data=Use("digits"),
        train=Train(steps=200, global_batch=32, micro_batch=32, lr=1e-2, log_every=20, eval_every=100),
        variants={"tiny": {"model": {"hidden": 8}, "train": {"steps": 4, "global_batch": 8, "micro_batch": 2}}},
    )
