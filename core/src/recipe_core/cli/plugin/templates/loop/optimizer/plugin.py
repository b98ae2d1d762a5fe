"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import ModelFacts, OptimizerFacts, OptimizerSpec, Recipe, Train, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_models", "register_optimizers", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Stochastic gradient descent with momentum."""

    momentum: float = 0.9
    """Fraction of the last direction that each step keeps."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected 0 to below 1, got {self.momentum}")


def facts(config: Momentum, train: Train, model: ModelFacts) -> OptimizerFacts:
    """Count one state, as wide as the weights."""
    return OptimizerFacts(bytes_per_parameter=2.0 if train.precision == "bf16" else 4.0)


@hookimpl
def register_optimizers() -> Iterable[OptimizerSpec]:
    """The optimizer: ``recipe run RECIPE optimizer=new_plugin_momentum optimizer.momentum=0.95``."""
    yield OptimizerSpec(
        name="new_plugin_momentum",
        build="recipe_new_plugin.optimizer:build",
        facts="recipe_new_plugin.plugin:facts",
        config=Momentum,
        uses=("weight_decay",),  # settings of the section train that it takes, beside lr
        summary="stochastic gradient descent with momentum",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model and an optimizer of its own",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        optimizer=Use("new_plugin_momentum"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
