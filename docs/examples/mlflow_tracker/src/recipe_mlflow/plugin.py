"""The tracker ``mlflow``, and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recipe_core import TrackerSpec, hookimpl


@dataclass(frozen=True, kw_only=True)
class Mlflow:
    """Where MLflow keeps the metrics."""

    file: str = "mlflow.db"
    """SQLite database of MLflow; runs of several folders may share it. Relative to the working directory."""
    experiment: str = "recipe"
    """Name of the experiment that runs belong to; it is created where it is new."""


@hookimpl
def register_trackers() -> Iterable[TrackerSpec]:
    """MLflow."""
    yield TrackerSpec(
        name="mlflow",
        build="recipe_mlflow.tracker:build",
        config=Mlflow,
        summary="MLflow on SQLite; `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows it",
    )
