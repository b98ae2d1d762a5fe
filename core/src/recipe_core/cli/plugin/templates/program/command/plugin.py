"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import CommandSpec, Recipe, Train, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_commands", "register_datasets", "register_models", "register_recipes"]


@hookimpl
def register_commands() -> Iterable[CommandSpec]:
    """The command: ``recipe new_plugin FIRST SECOND``."""
    yield CommandSpec(
        name="new_plugin",
        build="recipe_new_plugin.command:differences",
        summary="Print the settings in which two recipes differ.",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model to compare others with",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
