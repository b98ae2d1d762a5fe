"""Runs that a callback ended or that gain one, as later commands see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recipe_core.cli.main import main
from recipe_core.errors import ConfigError
from recipe_core.settings.job import resolve
from recipe_core.testing import spawn, toy
from recipe_core.testing.checkpoints import tensors
from recipe_core.train.run import run

STOPPING = (
    "callbacks=early_stopping", "callback.early_stopping.patience=2", "callback.early_stopping.least_change=10",
    "train.eval_every=1",
)  # fmt: skip


def train(out: Path, *words: str) -> dict[str, Any]:
    run(resolve(toy.registry(), "toy", ["train.device=cpu", "train.steps=6", *words]), out)
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    return results


def test_a_run_that_a_callback_ended_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = train(tmp_path / "run", *STOPPING)["ended_by"]
    shown = capsys.readouterr().out
    assert f"toy ended at step 2 of 6 by {ended}" in shown
    assert not any(text in shown for text in ("continue to step", "twice as long"))
    spawn(train, 1, tmp_path / "run", *STOPPING)  # whose process has ended, too
    assert main(["status", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert f"finished (exit code 0): ended by {ended}\n" in shown
    assert not any(text in shown for text in ("time left", "go on with"))
    assert main(["status", str(tmp_path / "run"), "--again"]) == 1


def test_more_patience_or_another_metric_continues_a_run_that_was_ended(tmp_path: Path) -> None:
    assert train(tmp_path, *STOPPING)["step"] == 2
    assert train(tmp_path, *STOPPING, "callback.early_stopping.patience=3")["step"] == 3
    assert train(tmp_path, *STOPPING, "callback.early_stopping.metric=val_accuracy")["step"] == 6


def test_a_callback_begins_with_the_checkpoint_of_a_run_without_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "without", "train.stop_after=2")
    train(tmp_path / "with", f"train.resume={tmp_path / 'without'}", "callbacks=ema", "callback.ema.decay=0.5")
    assert "callback ema begins now: the checkpoint has no state of it" in capsys.readouterr().out
    assert any(name.startswith("callbacks.ema.weights.") for name in tensors(tmp_path / "with"))


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("callbacks.ema.decay=0.9", "callbacks.ema: callbacks lists names; write `callback.ema` for its settings"),
        ("callback=ema", "callback: it holds settings; write `callbacks=ema` for the list of names"),
        ("tracker=mlflow", "tracker: it holds settings; write `trackers=mlflow` for the list of names"),
    ],
)
def test_the_list_and_its_settings_are_told_apart(word: str, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(toy.registry(), "toy", [word])
    assert str(error.value) == text
