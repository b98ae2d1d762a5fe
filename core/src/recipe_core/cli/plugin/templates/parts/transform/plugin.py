"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import Recipe, Train, TransformSpec, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_models", "register_recipes", "register_transforms"]


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Linear layers with a trained factor for each output; all other parameters are frozen."""

    targets: tuple[str, ...] = ()
    """Names of linear layers, in which a star stands for any text; empty: all."""


@hookimpl
def register_transforms() -> Iterable[TransformSpec]:
    """The transform: ``recipe run RECIPE transforms=new_plugin_scaled transform.new_plugin_scaled.targets=*.value``."""
    yield TransformSpec(
        name="new_plugin_scaled",
        build="recipe_new_plugin.transform:scaled",
        merge="recipe_new_plugin.transform:merge",  # it adds weights, which other projects do not know
        config=Scaled,
        summary="a trained factor for each output of linear layers, whose weights are frozen",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model of which factors alone are trained",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        transforms={"new_plugin_scaled": {"targets": ("first", "second")}},
        train=Train(
            steps=300,
            global_batch=32,
            micro_batch=16,
            lr=1e-2,
            eval_every=100,
            transforms=("new_plugin_scaled",),
        ),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
