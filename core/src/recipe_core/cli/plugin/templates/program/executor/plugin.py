"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import ExecutorSpec, Recipe, Train, Use, hookimpl

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_executors", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class LowPriority:
    """Settings of the executor: the section ``new_plugin_low`` of the site profile."""

    nice: int = 10
    """Priority of the processes, from 0, the highest, to 19, the lowest."""

    def __post_init__(self) -> None:
        if not 0 <= self.nice <= 19:
            raise ValueError(f"nice: expected 0 to 19, got {self.nice}")


@hookimpl
def register_executors() -> Iterable[ExecutorSpec]:
    """The executor: ``recipe prepare DATASET ... --on new_plugin_low:PROCESSES --parts N``."""
    yield ExecutorSpec(
        name="new_plugin_low",
        build="recipe_new_plugin.executor:tasks",
        config=LowPriority,
        summary="processes of this machine that leave its cores to others",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe beside it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100),
        variants={"tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
