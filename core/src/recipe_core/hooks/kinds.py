"""The kinds of contributions: the hook, the word and the class of each."""

from __future__ import annotations

from typing import Literal

from recipe_core.hooks.specs import CheckpointFormat, Dataset, EngineSpec, Layout, Model, Recipe, Spec
from recipe_core.hooks.specs.command import CommandSpec
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.specs.executor import ExecutorSpec
from recipe_core.hooks.specs.launcher import Launcher
from recipe_core.hooks.specs.loop import CallbackSpec, LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.specs.wrapper import DataWrapperSpec

PartKind = Literal["model", "data", "loss", "layout", "checkpoint", "engine", "optimizer", "schedule"]
ListedKind = Literal["tracker", "callback", "transform", "evaluation", "wrapper"]
"""Kinds of which a run has any number, listed in the section ``train``, wrappers in ``data``."""
Kind = Literal["recipe", "launcher", "executor", "command"] | ListedKind | PartKind
Contribution = Spec | Recipe | CommandSpec

KINDS: dict[Kind, str] = {
    "recipe": "register_recipes",
    "model": "register_models",
    "data": "register_datasets",
    "layout": "register_layouts",
    "checkpoint": "register_checkpoint_formats",
    "engine": "register_engines",
    "launcher": "register_launchers",
    "executor": "register_executors",
    "loss": "register_losses",
    "optimizer": "register_optimizers",
    "schedule": "register_schedules",
    "tracker": "register_trackers",
    "callback": "register_callbacks",
    "command": "register_commands",
    "wrapper": "register_data_wrappers",
    "transform": "register_transforms",
    "evaluation": "register_evaluations",
}
"""Kinds of contributions, by the name that recipes and settings use for them, with the hook that returns them."""
PARTS: tuple[PartKind, ...] = ("model", "data", "loss", "layout", "checkpoint", "engine", "optimizer", "schedule")
"""The kinds that a recipe is composed of; each is a section of settings."""
NOUNS: dict[Kind, str] = {
    "recipe": "recipe",
    "model": "model",
    "data": "dataset",
    "layout": "layout",
    "checkpoint": "checkpoint format",
    "engine": "engine",
    "launcher": "launcher",
    "executor": "executor",
    "loss": "loss",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "tracker": "tracker",
    "callback": "callback",
    "command": "command",
    "wrapper": "data wrapper",
    "transform": "transform",
    "evaluation": "evaluation",
}
CLASSES: dict[Kind, type[Contribution]] = {
    "recipe": Recipe,
    "model": Model,
    "data": Dataset,
    "layout": Layout,
    "checkpoint": CheckpointFormat,
    "engine": EngineSpec,
    "launcher": Launcher,
    "executor": ExecutorSpec,
    "loss": LossSpec,
    "optimizer": OptimizerSpec,
    "schedule": ScheduleSpec,
    "tracker": TrackerSpec,
    "callback": CallbackSpec,
    "command": CommandSpec,
    "wrapper": DataWrapperSpec,
    "transform": TransformSpec,
    "evaluation": EvaluationSpec,
}
"""The class of a contribution of each kind."""


def noun(item: Contribution) -> str:
    """Return the word for the kind of ``item``, for messages."""
    return next((NOUNS[kind] for kind, class_ in CLASSES.items() if isinstance(item, class_)), type(item).__name__)


def code_of(spec: Spec) -> str:
    """Return the contribution with the target of its code, for messages about errors of that code."""
    return f"{noun(spec)} {spec.name!r}: {spec.build!r}"
