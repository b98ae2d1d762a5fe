"""Resuming with other samples or another tokenizer at the same paths."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe_core.cli.main import main

pytestmark = pytest.mark.filterwarnings("default")
ARGS = (
    "data.task=mrpc", "data.max_length=24", "train.epochs=1", "train.batch_per_process=4", "train.micro_batch=2",
    "train.eval_every=0", "train.log_every=1",
)  # fmt: skip


def acceptance(text: str) -> str:
    """The setting that a message suggests."""
    return next(part for part in text.split() if part.startswith("train.accept="))


@pytest.fixture
def source(bert: Path, tmp_path: Path) -> Path:
    """A copy of the BERT, to change."""
    return Path(shutil.copytree(bert, tmp_path / "bert"))


@pytest.mark.parametrize("kind", ["samples", "tokenizer"])
def test_other_samples_or_tokenizers_are_refused(
    fine_tune: Callable[..., Any], folder: Path, source: Path, tmp_path: Path, kind: str
) -> None:
    args = (*ARGS, f"model.source={source}", f"data.folder={folder}")
    assert fine_tune(*args, "train.stop_after=3").code == 0
    saved, kept = (
        yaml.safe_load((place / "job.yaml").read_text())
        for place in (tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-3")
    )
    assert saved["identity"].keys() == kept["identity"].keys() == {"content", "tokenizer"}
    assert saved["plugins"] == kept["plugins"]
    assert kept["plugins"]["model"].startswith("hf_finetune")
    if kind == "samples":
        path = folder / "train.tsv"
        path.write_text(path.read_text().replace("rivers", "reviver"))
    else:
        path = source / "vocab.txt"
        path.write_text(path.read_text().replace("\nrivers\nwhile", "\nwhile\nrivers"))
    done = fine_tune(*args)
    assert (done.code, "was trained on other data:" in done.text) == (2, True)
    noun = "the data" if kind == "samples" else "the tokenizer"
    assert f"  - {noun}: digest " in done.text
    assert done.text.count(": digest ") == 1
    done = fine_tune(*args, acceptance(done.text))
    assert (done.code, done.results["step"]) == (0, 7)
    assert [line.partition(":")[0] for line in done.results["accepted"]] == [noun]


def test_a_damaged_vocabulary_of_the_run_itself(fine_tune: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    """With random weights, the run trains the vocabulary itself."""
    args = (*ARGS, "model.source=null", f"data.folder={folder}", "data.vocabulary=500")
    assert fine_tune(*args, "train.stop_after=3").code == 0
    path = tmp_path / "run" / "tokenizer" / "vocab.txt"
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:8], lines[9], lines[8], *lines[10:]]))
    done = fine_tune(*args)
    assert (done.code, "  - the tokenizer: digest " in done.text) == (2, True)


def test_another_tokenizer_than_that_of_the_weights(
    fine_tune: Callable[..., Any], folder: Path, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path / "other")
    args = (*ARGS, f"model.source={source}", f"data.folder={folder}", f"model.tokenizer={tmp_path / 'other'}")
    assert fine_tune(*args, "train.stop_after=1", out=tmp_path / "same").code == 0
    path = tmp_path / "other" / "vocab.txt"
    path.write_text(path.read_text().replace("\nrivers\nwhile", "\nwhile\nrivers"))
    done = fine_tune(*args)
    assert (done.code, f"{tmp_path / 'other'} is not the tokenizer of model.source ({source})" in done.text) == (
        2,
        True,
    )
    assert fine_tune(*args, acceptance(done.text), "train.stop_after=1").code == 0


def test_the_model_of_a_run_has_check_sums(
    fine_tune: Callable[..., Any], folder: Path, source: Path, tmp_path: Path
) -> None:
    args = (*ARGS, f"data.folder={folder}")
    assert fine_tune(*args, f"model.source={source}").code == 0
    model = tmp_path / "run" / "model"
    assert main(["verify", str(model)]) == 0
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(-3, 2)
        file.write(b"\x7f")
    assert main(["verify", str(model)]) == 1
    done = fine_tune(*args, f"model.source={tmp_path / 'run'}", out=tmp_path / "next")
    assert done.code == 2
    assert f"model.source: {model}: model.safetensors does not hold the bytes that were written" in done.text
