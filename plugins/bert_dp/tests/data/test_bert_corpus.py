"""The embedded corpus as shards."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recipe_bert_dp.data import corpus
from recipe_bert_dp.data.facts import facts
from recipe_bert_dp.data.inspect import BertFiles
from recipe_bert_dp.data.samples import build
from recipe_bert_dp.settings import BertHdf5
from recipe_core.data.prepare import read_manifest
from recipe_core.data.text import library
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run
from recipe_core.testing import at_once

CONFIG = BertHdf5(vocabulary=1000, sequence=64, max_predictions=10, packed=False)
PACKED = BertHdf5(vocabulary=1000, sequence=64, max_predictions=10)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the corpus, built by two processes that start together."""
    folder = tmp_path_factory.mktemp("cache")
    code = (
        "import sys, pathlib; from recipe_bert_dp.data import corpus; from recipe_bert_dp.settings import BertHdf5; "
        "corpus.prepare(pathlib.Path(sys.argv[1]), BertHdf5(vocabulary=1000, sequence=64, max_predictions=10))"
    )
    at_once(code, str(folder))
    return folder


def run_in(cache: Path) -> Run:
    return Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=Train(eval_every=1), cache=cache, vocabulary=1000,
    )  # fmt: skip


def test_it_is_english_and_large_enough_to_learn_from(cache: Path) -> None:
    folder = corpus.prepare(cache, CONFIG)
    assert BertFiles().verify(folder) == []
    counts = read_manifest(folder)["counts"]
    assert counts["tokens"] > 300_000
    assert counts["test"]["pairs"] > 200
    assert counts["unknown_tokens"] < counts["tokens"] / 1000
    assert len((folder / "vocab.txt").read_text().splitlines()) == 1000
    example = BertFiles().inspect(folder, None).example
    assert example is not None
    assert example.startswith("[CLS]")


def test_the_same_vocabulary_in_every_process(cache: Path) -> None:
    texts = library.documents(Path(sysconfig.get_paths()["stdlib"]))
    pieces = corpus.train_vocabulary(texts, 1000)
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert pieces == (corpus.prepare(cache, CONFIG) / "vocab.txt").read_text().splitlines()


def test_it_trains_without_any_file(cache: Path) -> None:
    assert facts(CONFIG).vocabulary == 1000
    assert facts(CONFIG).problems == ()
    plain, packed = (build(config, run_in(cache)) for config in (CONFIG, PACKED))
    for split in ("train", "valid"):
        assert plain.read(split, 0, 3)["input_ids"].shape == (3, 64)
        assert packed.read(split, 0, 30)["input_mask"].max() > 1


@pytest.mark.parametrize("name", ["vocab.txt", "training/training_00000.hdf5", "manifest.json"])
def test_a_corpus_with_a_file_missing_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, small: Callable[[Path], list[str]]
) -> None:
    monkeypatch.setattr(library, "documents", small)
    folder = corpus.prepare(tmp_path, CONFIG)
    before = (folder / name).read_bytes()
    (folder / name).unlink()
    assert corpus.prepare(tmp_path, CONFIG) == folder
    assert (folder / name).read_bytes() == before
    assert corpus.prepare(tmp_path, BertHdf5(vocabulary=1001, sequence=64, max_predictions=10)) != folder


@pytest.fixture
def small() -> Callable[[Path], list[str]]:
    return lambda library: [f"This is text {n}. It has words. More of them follow." for n in range(200)]
