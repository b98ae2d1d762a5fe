"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import Layout, LayoutSettings, Recipe, Train, Use, hookimpl, too_small

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_layouts", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Averaged(LayoutSettings):
    """Each rank holds the whole model and its part of each batch; the inherited ``axes`` are ``dp`` only."""

    bucket_mb: float = 25.0
    """Gradients that one collective averages, in MB."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 0, "bucket_mb"):
            raise ValueError("\n".join(problems))


@hookimpl
def register_layouts() -> Iterable[Layout]:
    """The layout: ``recipe run RECIPE layout=new_plugin_averaged``, with any recipe."""
    yield Layout(
        name="new_plugin_averaged",
        build="recipe_new_plugin.layout:build",
        config=Averaged,
        summary="data parallel: gradients are averaged once a step, in buckets",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model under a layout of its own",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        layout=Use("new_plugin_averaged"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
