"""Compose models, datasets, layouts and checkpoint formats into training recipes."""

from recipe_core.hooks.hooks import hookimpl
from recipe_core.hooks.specs import (
    CheckpointFormat,
    DataFacts,
    Dataset,
    EngineSpec,
    Layout,
    LayoutSettings,
    Model,
    ModelFacts,
    NoSettings,
    Recipe,
    Stages,
    Use,
)
from recipe_core.hooks.train import Train

__all__ = [
    "CheckpointFormat",
    "DataFacts",
    "Dataset",
    "EngineSpec",
    "Layout",
    "LayoutSettings",
    "Model",
    "ModelFacts",
    "NoSettings",
    "Recipe",
    "Stages",
    "Train",
    "Use",
    "hookimpl",
]
