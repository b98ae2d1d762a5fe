"""MLflow's own client reads what a run logged: every step once, also after a resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from recipe_core.settings.job import resolve
from recipe_core.testing import PluginConformance, toy
from recipe_core.train.metrics.curves import Row, read_rows
from recipe_core.train.run import run

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
pytest.importorskip("sqlalchemy", reason="sqlalchemy is not installed")
plugin = pytest.importorskip("recipe_mlflow.plugin", reason="the example is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # MLflow's own


class TestMlflow(PluginConformance):
    plugin = "recipe_mlflow.plugin"


def train(folder: Path, *words: str) -> list[Row]:
    options = (f"tracker.mlflow.file={folder / 'mlflow.db'}", "train.trackers=tensorboard,mlflow", "train.device=cpu")
    run(resolve(toy.registry(plugin), "toy", [*options, *words]), folder / "run")
    return read_rows(folder / "run" / "metrics.jsonl")


def logged(folder: Path) -> tuple[Any, dict[str, dict[int, float]]]:
    """The only run in MLflow, and its metrics by tag and step."""
    client = mlflow.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "recipe"]
    (found,) = client.search_runs([experiment.experiment_id])
    metrics: dict[str, dict[int, float]] = {}
    for tag in found.data.metrics:
        history = client.get_metric_history(found.info.run_id, tag)
        assert len({one.step for one in history}) == len(history), tag
        metrics[tag] = {one.step: one.value for one in history}
        assert found.data.metrics[tag] == metrics[tag][max(metrics[tag])], tag
    return found, metrics


def test_a_run_is_in_mlflow(tmp_path: Path) -> None:
    rows = train(tmp_path, "train.save_every=4")
    found, metrics = logged(tmp_path)
    assert (found.info.status, found.data.params["train.lr"]) == ("FINISHED", "0.05")
    assert metrics["train/loss"] == {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert metrics["valid/loss"] == {row["step"]: row["val_loss"] for row in rows if "val_loss" in row}
    assert {"train/lr", "train/grad_norm", "speed/samples_per_second", "system/peak_memory"} <= metrics.keys()


def test_a_killed_run_that_continues_has_every_step_once(tmp_path: Path) -> None:
    """As after a kill at step 8: the last checkpoint is of step 4."""
    train(tmp_path, "train.save_every=4")
    (last,) = (tmp_path / "run" / "checkpoints").glob("*8")
    shutil.rmtree(last)
    rows = train(tmp_path, "train.save_every=4", "train.lr=0.01")
    found, metrics = logged(tmp_path)
    assert found.info.status == "FINISHED"
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    assert sorted(losses) == list(range(1, 9))
    assert metrics["train/loss"] == losses
    assert sorted(metrics["valid/loss"]) == [0, 4, 8]
