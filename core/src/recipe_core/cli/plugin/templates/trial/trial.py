"""A small model and data to try the plugin with; remove it once you have your own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import DataFacts, Dataset, Model, ModelFacts, hookimpl, too_small


@dataclass(frozen=True, kw_only=True)
class Net:
    """Two layers."""

    hidden: int = 32

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "hidden"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Points:
    """Points of a plane, inside or outside a circle."""

    radius: float = 1.2


def model_facts(config: Net, sequence: int) -> ModelFacts:
    """Count weights ``2 x h`` and ``h x 2``, biases, and the activations kept for backward."""
    h = config.hidden
    return ModelFacts(
        parameters=5 * h + 2,
        flops_per_sample=24.0 * h,
        activation_values=2 + h,
        recomputed_activation_values=2 + h,
        logits_values=2,
        vocabulary=2,
    )


def data_facts(config: Points) -> DataFacts:
    """Return the facts, without reading data."""
    return DataFacts(sequence=2)


@hookimpl
def register_models() -> Iterable[Model]:
    """The model."""
    yield Model(
        name="new_plugin_net",
        build="recipe_new_plugin.trial_parts:build_net",
        facts="recipe_new_plugin.trial:model_facts",
        config=Net,
        takes=("points", "labels"),
        summary="two layers",
    )


@hookimpl
def register_datasets() -> Iterable[Dataset]:
    """The data."""
    yield Dataset(
        name="new_plugin_points",
        build="recipe_new_plugin.trial_parts:build_points",
        facts="recipe_new_plugin.trial:data_facts",
        config=Points,
        gives=("points", "labels"),
        summary="points of a plane, inside of a circle or not",
    )
