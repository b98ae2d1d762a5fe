"""Runs continued by their folder, and messages about a changed schedule."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from recipe_core.cli.main import main
from recipe_core.testing import toy

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recipe_core.hooks.registry.load", toy.registry)

    def type_it(*arguments: str) -> tuple[int, str, str]:
        return main(arguments), *capsys.readouterr()

    return type_it


def steps(folder: str) -> list[int]:
    rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "loss" in row]


def test_a_folder_continues_its_run(typed: Typed) -> None:
    assert typed("run", "toy:tiny", "train.steps=4", "train.stop_after=2", "train.log_every=1", "--out", "a")[0] == 0
    code, out, err = typed("run", "a", "train.stop_after=null")
    assert (code, err) == (0, "")
    assert "continuing after step 2\n" in out
    assert "another schedule" not in out
    assert steps("a") == [1, 2, 3, 4]


def test_another_schedule_is_named_in_one_line(typed: Typed) -> None:
    assert typed("run", "toy:tiny", "train.steps=4", "train.lr=0.1", "train.stop_after=2", "--out", "a")[0] == 0
    code, out, _ = typed("run", "a", "train.stop_after=null", "train.steps=6", "train.lr=0.2", "train.log_every=1")
    assert code == 0
    message = "continuing with another schedule: train.lr was 0.1 and is 0.2; train.steps was 4 and is 6\n"
    assert out.count("another schedule") == 1
    assert message in out


def test_other_settings_are_named_and_the_former_ones_kept(typed: Typed) -> None:
    assert typed("run", "toy:tiny", "train.steps=4", "train.stop_after=2", "--out", "a")[0] == 0
    out = typed("run", "a", "train.stop_after=3", "train.keep=5", "train.lr=0.2")[1]
    assert "continuing with another schedule: train.lr was 0.05 and is 0.2\n" in out
    assert "continuing with other settings: train.keep was 2 and is 5\n" in out
    assert "continuing with" not in typed("run", "a", "train.stop_after=null")[1]
    job = yaml.safe_load(Path("a", "job.yaml").read_text())
    assert job["history"] == ["after step 2: train.lr was 0.05 and is 0.2; train.keep was 2 and is 5"]
    assert typed("run", "a/job.yaml", "--out", "b")[0] == 0  # which begins a history of its own
    assert "history" not in yaml.safe_load(Path("b", "job.yaml").read_text())


def test_settings_that_an_older_version_did_not_have(typed: Typed) -> None:
    assert typed("run", "toy:tiny", "train.steps=4", "train.stop_after=2", "--out", "a")[0] == 0
    recorded = yaml.safe_load(Path("a", "job.yaml").read_text())
    del recorded["train"]["keep"], recorded["train"]["betas"]
    Path("a", "job.yaml").write_text(yaml.safe_dump(recorded))
    out = typed("run", "toy:tiny", "train.steps=4", "train.stop_after=1", "train.keep=7", "--out", "a")[1]
    assert "continuing with other settings: train.keep was None and is 7\n" in out
    assert "another schedule" not in out


def test_a_finished_run_with_other_settings_is_left_as_it_is(typed: Typed) -> None:
    assert typed("run", "toy:tiny", "train.steps=2", "train.log_every=1", "--out", "a")[0] == 0
    before, rows = Path("a", "job.yaml").read_text(), Path("a", "metrics.jsonl").read_text()
    code, out, _ = typed("run", "a", "train.lr=0.2", "train.keep=7")
    assert code == 0
    message = (
        "nothing is left to do: the run has taken 2 steps, and its settings stay as they are; train.steps=4 trains on"
    )
    assert message in out
    assert "continuing with" not in out
    assert (Path("a", "job.yaml").read_text(), Path("a", "metrics.jsonl").read_text()) == (before, rows)


def test_another_folder_begins_anew_with_the_settings(typed: Typed) -> None:
    assert typed("run", "toy:tiny", "train.steps=2", "train.log_every=1", "--out", "a")[0] == 0
    code, out, _ = typed("run", "a", "--out", "b")
    assert code == 0
    assert "continuing" not in out
    assert steps("b") == steps("a") == [1, 2]


def test_a_folder_that_no_run_wrote(typed: Typed, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    message = "a: is not a run folder (no job.yaml in it); name a recipe, a file or a run folder"
    assert typed("run", "a") == (2, "", f"recipe run: {message}\n")
    (tmp_path / "toy").mkdir()  # a recipe's name stays the recipe's
    assert typed("run", "toy:tiny", "train.steps=1", "--out", "b")[0] == 0
    assert typed("run", "toy", "train.steps=none", "--out", "c")[2].startswith("recipe run: train.steps: expected")
