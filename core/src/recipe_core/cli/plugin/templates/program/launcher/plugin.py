"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import Launcher, Recipe, Train, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_launchers", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Background:
    """Settings of the launcher: the section ``new_plugin_background`` of the site profile."""

    nice: int = 10
    """Priority of the processes, from 0, the highest, to 19, the lowest."""

    def __post_init__(self) -> None:
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice: expected 0 to 19, got {self.nice}")


@hookimpl
def register_launchers() -> Iterable[Launcher]:
    """The launcher: ``recipe submit RECIPE --to new_plugin_background``; then ``recipe status`` and ``recipe stop``."""
    yield Launcher(
        name="new_plugin_background",
        build="recipe_new_plugin.launcher:scripts",
        submit="recipe_new_plugin.launcher:submit",  # without it, the scripts are printed
        state="recipe_new_plugin.launcher:state",
        stop="recipe_new_plugin.launcher:stop",
        config=Background,
        summary="the background of this machine, where a run survives the end of your session",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model to submit",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
