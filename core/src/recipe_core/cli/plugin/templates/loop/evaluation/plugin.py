"""Everything that this plugin adds. No torch here: every command reads this file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import EvaluationSpec, Recipe, Train, Use, hookimpl, too_small

from recipe_new_plugin.trial import register_datasets, register_models

__all__ = ["register_datasets", "register_evaluations", "register_models", "register_recipes"]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How far the probabilities of a classifier are from how often it is right."""

    samples: int = 64
    """Samples, taken from the start of the validation split."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "samples"):
            raise ValueError("\n".join(problems))


@hookimpl
def register_evaluations() -> Iterable[EvaluationSpec]:
    """The evaluation: ``recipe run RECIPE evaluations=new_plugin_calibration``, ``recipe eval RUN --tasks NAME``."""
    yield EvaluationSpec(
        name="new_plugin_calibration",
        build="recipe_new_plugin.evaluation:build",
        config=Calibration,
        takes=("loss",),  # samples and outputs; score: log-likelihoods of texts; generate: continuations of prompts
        fatal=False,  # an error is printed once, and training continues
        summary="mean probability of the predicted class, and the share of right predictions",
    )


@hookimpl
def register_recipes() -> Iterable[Recipe]:
    """A recipe that uses it: ``recipe run new_plugin``."""
    yield Recipe(
        name="new_plugin",
        summary="a small model whose probabilities are compared with its accuracy",
        model=Use("new_plugin_net"),
        data=Use("new_plugin_points"),
        train=Train(
            steps=300,
            global_batch=32,
            micro_batch=16,
            lr=1e-2,
            eval_every=100,
            evaluations=("new_plugin_calibration",),
        ),
        variants={
            "tiny": {"train": {"steps": 4, "global_batch": 8, "micro_batch": 2, "log_every": 1, "eval_every": 2}}
        },
    )
