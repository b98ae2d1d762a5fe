"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import LossSpec, Recipe, Train, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_losses", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Focal:
    """Focal loss: samples that the model gets right count less."""

    gamma: float = 2.0
    """How much less; 0 is cross entropy."""

    def __post_init__(self) -> None:
        if self.gamma < 0:
            raise ValueError(f"gamma: expected at least 0, got {self.gamma}")


@hookimpl
def register_losses() -> Iterable[LossSpec]:
    """The loss: ``recipe run RECIPE loss=new_plugin_focal loss.gamma=1``, for models that return scores of classes."""
    yield LossSpec(
        name="new_plugin_focal",
        build="recipe_new_plugin.loss:build",
        config=Focal,
        takes=("labels",),  # what a micro batch must hold; other datasets are refused before the run
        metrics={"hardest": "max"},  # how it is reduced over micro batches and ranks; "mean" by default
        summary="focal loss: samples that the model gets right count less",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model and a loss of its own",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        loss=Use("new_plugin_focal"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
