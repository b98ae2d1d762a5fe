"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable

from recipe_core import CheckpointFormat, Recipe, Train, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_checkpoint_formats", "register_datasets", "register_models", "register_recipes"]


@hookimpl
def register_checkpoint_formats() -> Iterable[CheckpointFormat]:
    """The format: ``recipe run RECIPE checkpoint=new_plugin_file``, with any recipe."""
    yield CheckpointFormat(
        name="new_plugin_file",
        build="recipe_new_plugin.format:OneTree",
        patterns=("new_plugin.pt",),  # by which a folder is recognised
        summary="one file of nested dicts, under names of its own; written by rank 0",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model that is saved in a format of its own",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        checkpoint=Use("new_plugin_file"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
