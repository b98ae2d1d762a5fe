"""Resuming with other shards or another vocabulary at the same paths."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from recipe_bert_dp.data.identity import identity
from recipe_bert_dp.prepare.hdf5 import prepare
from recipe_bert_dp.settings import BertHdf5, PrepareHdf5
from recipe_core import DataError
from recipe_core.testing import runs

Typed = Callable[..., tuple[int, str]]
SIZES = ("data.sequence=64", "data.max_predictions=10", "model.vocabulary=28", "train.steps=4")


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Typed:
    return runs.typed(capfd)


@pytest.fixture
def other(shards: Path, settings: Callable[..., PrepareHdf5], vocabulary: Path, tmp_path: Path) -> Path:
    """Shards of the same text with a reordered vocabulary."""
    pieces = vocabulary.read_text().splitlines()
    words = pieces[8:]
    random.Random(3).shuffle(words)
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "vocab.txt").write_text("\n".join([*pieces[:8], *words]) + "\n", encoding="utf-8")
    prepare(settings(vocabulary=str(tmp_path / "v2" / "vocab.txt"), output=str(tmp_path / "other")))
    return tmp_path / "other"


def test_a_run_does_not_resume_with_other_shards(shards: Path, other: Path, tmp_path: Path, typed: Typed) -> None:
    line = ("run", "bert_dp:tiny", f"data.files={shards}", *SIZES, "--out", tmp_path / "run")
    code, output = typed(*line, "train.stop_after=2")
    assert code == 0, output
    prompt = ("--prompt", "the [MASK] house")
    before = typed("generate", tmp_path / "run", *prompt)
    assert before[0] == 0
    shutil.move(shards, tmp_path / "kept")
    shutil.move(other, shards)
    code, output = typed(*line)
    assert (code, "  - the data: digest " in output, "  - the tokenizer: digest " in output) == (2, True, True)
    assert typed("generate", tmp_path / "run", *prompt) == before  # with the run's own vocabulary
    code, output = typed("generate", tmp_path / "run", *prompt, "--tokenizer", shards / "vocab.txt")
    assert (code, "its tokenizer is not the one that " in output) == (2, True)
    assert typed("generate", tmp_path / "run", *prompt, "--tokenizer", tmp_path / "kept" / "vocab.txt")[0] == 0
    code, output = typed("eval", tmp_path / "run", "--data", shards)
    assert (code, f"--data {shards}: its tokenizer is not the one that " in output) == (2, True)
    code, output = typed(*line, output.split()[-1].replace("--accept", "train.accept="))
    assert code == 2  # the digest was of another difference


def test_shards_of_two_vocabularies_are_not_mixed(shards: Path, other: Path, typed: Typed) -> None:
    code, output = typed("check", "bert_dp:tiny", f"data.files={shards},{other}", *SIZES)
    assert code == 2
    assert f"{shards}/vocab.txt and {other}/vocab.txt, the vocabularies of the shards, differ" in output
    acceptance = output.split()[-1]
    assert acceptance.startswith("train.accept=")
    assert typed("check", "bert_dp:tiny", f"data.files={shards},{other}", *SIZES, acceptance)[0] == 0


def test_digests_follow_the_training_shards(shards: Path) -> None:
    config = BertHdf5(files=(str(shards),), sequence=64, max_predictions=10)
    before = identity(config)
    assert before.manifest
    assert before.order == {"sequence": 64, "max_predictions": 10}
    (path, *_) = sorted(shards.rglob("*training*.hdf5"))
    with h5py.File(path, "r+") as file:
        file["next_sentence_labels"][0] ^= 1
    assert identity(config).content != before.content
    with path.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(DataError, match=r"has [\d,]+ bytes instead of"):
        identity(config)
