"""A tracker that logs to MLflow, and rewinds the log when a run resumes from a checkpoint."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from recipe_core import TrackedRun, write_text
from recipe_mlflow.plugin import Mlflow

RUN_FILE = "mlflow_run"
"""The file in the run folder that holds the id of the run in MLflow."""
LONGEST = 500
"""The length of a parameter that every version of MLflow accepts."""


def build(config: Mlflow, run: TrackedRun) -> MlflowTracker:
    """Open the tracker ``mlflow``."""
    return MlflowTracker(config, run)


class MlflowTracker:
    """A run in MLflow. When training resumes from a run folder, it continues the same one."""

    def __init__(self, config: Mlflow, run: TrackedRun) -> None:
        logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every table that it creates
        from mlflow import MlflowClient

        database = Path(config.file).absolute()
        database.parent.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(f"sqlite:///{database}")
        known = run.folder / RUN_FILE
        if run.since and known.exists():
            self._id = known.read_text(encoding="utf-8").strip()
            self._client.update_run(self._id, status="RUNNING")
            _rewind(database, self._id, run.since)
            return
        found = self._client.get_experiment_by_name(config.experiment)
        experiment = found.experiment_id if found else self._client.create_experiment(config.experiment)
        tags = {"recipe.folder": str(run.folder.absolute())}
        self._id = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        write_text(known, f"{self._id}\n")
        self._log_settings(run.settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record ``values`` of ``step``."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(
            self._id, metrics=[Metric(tag, float(value), now, step) for tag, value in values.items()]
        )

    def close(self) -> None:
        """Mark the run as ended."""
        self._client.set_terminated(self._id)

    def _log_settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:LONGEST]) for name, value in _flat(settings)]
        self._client.log_batch(self._id, params=params)


def _rewind(database: Path, run: str, since: int) -> None:
    """Delete the values of the steps after ``since``; MLflow has no function for this."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM metrics WHERE run_uuid = ? AND step > ?", (run, since))
        connection.execute("DELETE FROM latest_metrics WHERE run_uuid = ?", (run,))
        connection.execute(
            "INSERT INTO latest_metrics (key, value, timestamp, step, is_nan, run_uuid) "
            "SELECT key, value, timestamp, step, is_nan, run_uuid FROM metrics AS one WHERE run_uuid = ? AND rowid = "
            "(SELECT rowid FROM metrics WHERE run_uuid = one.run_uuid AND key = one.key "
            "ORDER BY step DESC, timestamp DESC, value DESC LIMIT 1)",
            (run,),
        )


def _flat(settings: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{parent}{name}.")
        else:
            yield f"{parent}{name}", value
