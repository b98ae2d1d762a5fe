"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import Recipe, ScheduleSpec, Train, Use, hookimpl, too_small

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_models", "register_recipes", "register_schedules"]


@dataclass(frozen=True, kw_only=True)
class InverseRoot:
    """A rate that falls with the square root of the step, and needs no end of the run."""

    scale: int = 100
    """Steps after the warm-up until the rate has fallen to 0.71 of its peak."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "scale"):
            raise ValueError("\n".join(problems))


@hookimpl
def register_schedules() -> Iterable[ScheduleSpec]:
    """The schedule: ``recipe run RECIPE schedule=new_plugin_root schedule.scale=1000 train.warmup_steps=50``."""
    yield ScheduleSpec(
        name="new_plugin_root",
        build="recipe_new_plugin.schedule:build",
        config=InverseRoot,
        uses=("warmup_steps", "warmup_ratio"),  # settings of the section train that it reads, beside lr and steps
        summary="warm-up, then a fall with the square root of the step",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model and a schedule of its own",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        schedule=Use("new_plugin_root"),
        train=Train(steps=300, global_batch=32, micro_batch=16, lr=1e-2, eval_every=100, warmup_steps=20),
        variants={"tiny": {"train": {"steps": 8, "warmup_steps": 2, "global_batch": 8, "micro_batch": 2, "log_every": 1}}},
    )
