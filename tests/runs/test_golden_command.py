"""A run that is held to a stored curve, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.testing import Finished, command, run_tiny

WORDS = ("train.steps=6", "train.log_every=1", "train.eval_every=0")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run_tiny("megatron_gpt", tmp_path_factory.mktemp("good") / "run", *WORDS)


def held(out: Path, golden: Path, *words: str) -> tuple[int, str]:
    done = command(
        "run", "megatron_gpt:tiny", "train.steps=6", "train.eval_every=0", "train.log_every=3", "train.save_every=1",
        "train.keep=0", f"train.golden={golden}", *words, "--out", str(out),
    )  # fmt: skip
    return done.returncode, done.stdout


def test_from_a_good_run_to_one_that_departs(tmp_path: Path, good: Finished) -> None:
    golden = tmp_path / "golden.jsonl"
    done = command("compare", str(good.out), "--no-png", "--write-golden", str(golden))
    assert done.returncode == 0, done.stdout
    code, text = held(tmp_path / "same", golden, "train.golden_tolerance=0")
    assert code == 0, text
    assert f"golden: 6 steps are held to {golden} within 0 of its losses" in text
    code, text = held(tmp_path / "other", golden, "train.lr=0.1", "train.golden_tolerance=1e-4")
    assert code == 1
    assert "Traceback" not in text
    (message,) = [line for line in text.splitlines() if "train.golden_tolerance allows" in line]
    assert message.startswith("recipe run: step 3: the loss is ")  # the first step begins at a learning rate of 0
    saved = {path.name for path in (tmp_path / "other" / "checkpoints").glob("step-*")}
    assert saved == {"step-1", "step-2"}
    done = command("compare", str(good.out), str(tmp_path / "other"), "--tolerance", "1e-4", "--no-png")
    assert (done.returncode, "first at step 3" in done.stdout) == (1, True)


def test_on_two_processes_it_is_told_once(tmp_path: Path, good: Finished) -> None:
    golden = tmp_path / "golden.jsonl"
    losses = {**good.column(), 5: 1.0}
    golden.write_text("".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses.items()))
    code, text = held(tmp_path / "run", golden, "train.golden_tolerance=1e-5", "--processes", "2")
    assert code == 1
    assert text.count("step 5: the loss is ") == 1
    assert "Traceback" not in text


@pytest.mark.parametrize("name", ["check", "run"])
def test_a_missing_curve_is_found_before_the_run(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    done = command(name, "megatron_gpt:tiny", f"train.golden={tmp_path / 'typo'}", "--out", str(out))
    assert done.returncode == 2
    message = (
        f"recipe {name}: train.golden: {tmp_path / 'typo'}: there is no such file or folder; expected a run folder"
    )
    assert message in done.stdout
    assert not out.exists()
