"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import CallbackSpec, Recipe, Train, Use, hookimpl, too_small

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_callbacks", "register_datasets", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """A validation loss that is low enough."""

    loss: float = 0.15
    """The run ends once the validation loss is below."""
    evaluations: int = 2
    """Evaluations in a row that must be below it."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "evaluations"):
            raise ValueError("\n".join(problems))


def problems(config: Target, train: Train) -> Iterable[str]:
    """Yield what keeps a run from having the callback; `recipe check` and the start of the run report it."""
    if not train.eval_every:
        yield "it needs evaluations; set train.eval_every"


@hookimpl
def register_callbacks() -> Iterable[CallbackSpec]:
    """The callback: ``recipe run RECIPE callbacks=new_plugin_target callback.new_plugin_target.loss=2``."""
    yield CallbackSpec(
        name="new_plugin_target",
        build="recipe_new_plugin.callback:LossTarget",
        config=Target,
        saves=True,  # its state is part of checkpoints
        problems="recipe_new_plugin.plugin:problems",
        summary="the end of a run whose validation loss is low enough",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model that is trained until its loss is low enough",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        train=Train(
            steps=300,
            global_batch=32,
            micro_batch=16,
            lr=1e-2,
            eval_every=20,
            callbacks=("new_plugin_target",),
        ),
        variants={
            "tiny": {"train": {"steps": 8, "global_batch": 8, "micro_batch": 2, "log_every": 1, "eval_every": 4}}
        },
    )
