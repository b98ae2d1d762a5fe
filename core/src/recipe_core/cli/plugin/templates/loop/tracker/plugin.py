"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import Recipe, TrackerSpec, Train, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_models", "register_recipes", "register_trackers"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table in the run folder."""

    file: str = "metrics.csv"
    """Name of the file."""


@hookimpl
def register_trackers() -> Iterable[TrackerSpec]:
    """The tracker: ``recipe run RECIPE train.trackers=tensorboard,new_plugin_table``, with any recipe."""
    yield TrackerSpec(
        name="new_plugin_table",
        build="recipe_new_plugin.tracker:build",
        config=Table,
        summary="metrics as a table of comma-separated values in the run folder",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model whose metrics go into a table",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        train=Train(
            steps=300,
            global_batch=32,
            micro_batch=16,
            lr=1e-2,
            eval_every=100,
            trackers=("new_plugin_table",),
        ),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
