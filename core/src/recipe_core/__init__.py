"""Compose models, datasets, layouts and checkpoint formats into training recipes."""

from recipe_core.hooks import hookimpl
from recipe_core.settings import Train
from recipe_core.specs import (
    CheckpointFormat,
    DataFacts,
    Dataset,
    Layout,
    Model,
    ModelFacts,
    NoSettings,
    Recipe,
    Stages,
    Use,
)

__all__ = [
    "CheckpointFormat",
    "DataFacts",
    "Dataset",
    "Layout",
    "Model",
    "ModelFacts",
    "NoSettings",
    "Recipe",
    "Stages",
    "Train",
    "Use",
    "hookimpl",
]
