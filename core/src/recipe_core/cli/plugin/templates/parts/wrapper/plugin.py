"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import DataWrapperSpec, Recipe, Train, Use, hookimpl, too_small

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_data_wrappers", "register_datasets", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Near:
    """Which points are near enough."""

    most: float = 2.0
    """The largest coordinate of a point that is kept."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 0.1, "most"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise of the points."""

    scale: float = 0.05
    """Its standard deviation."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 0, "scale"):
            raise ValueError("\n".join(problems))


@hookimpl
def register_data_wrappers() -> Iterable[DataWrapperSpec]:
    """A filter and a change: ``recipe run RECIPE wrappers=new_plugin_near wrapper.new_plugin_near.most=1``."""
    yield DataWrapperSpec(
        name="new_plugin_near",
        build="recipe_new_plugin.wrapper:near",
        config=Near,
        takes=("points",),
        filters=True,
        summary="points without large coordinates",
    )
    yield DataWrapperSpec(
        name="new_plugin_noise",
        build="recipe_new_plugin.wrapper:noisy",
        config=Noise,
        takes=("points",),
        summary="points with noise",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses both: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model, trained on filtered points with noise",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points", wrappers=("new_plugin_near", "new_plugin_noise")),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={
            "tiny": {"train": {"steps": 4, "global_batch": 8, "micro_batch": 2, "log_every": 1, "eval_every": 2}}
        },
    )
