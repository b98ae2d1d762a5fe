"""``recipe prepare bert_hdf5 ... filters=...``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipe_core.cli.main import main

MODULE = """
def dots(text, least=5):
    return text.count(".") >= least, "few_sentences"

def last(text):
    return text.replace("house", "river")
"""
FILTERS = "filters=[bert_filters:dots, bert_filters:last]"


@pytest.fixture
def words(text: Path, vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "bert_filters.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    named = vocabulary.rename(tmp_path / "pieces.txt")
    return [
        f"inputs={text}", f"vocabulary={named}", "sequence=64", "max_predictions=10", "samples_per_shard=100",
        "dupe_factor=2", "test_share=0.1", "workers=1",
    ]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_shards_of_filtered_texts_equal_those_of_the_texts_that_are_kept(
    words: list[str], text: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "bert_hdf5", *words, FILTERS, f"output={tmp_path / 'ours'}"]) == 0
    texts = [json.loads(line)["text"] for line in text.read_text(encoding="utf-8").splitlines()]
    kept = [found.replace("house", "river") for found in texts if found.count(".") >= 5]
    dropped = len(texts) - len(kept)
    shown = " ".join(capfd.readouterr().out.split())
    assert f"bert_filters:dots dropped {dropped} of 60 ({dropped} few_sentences)" in shown
    manifest = json.loads((tmp_path / "ours" / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["counts"]["documents"], manifest["counts"]["dropped"]) == (len(kept), dropped)
    first = next(number for number, found in enumerate(texts, 1) if found.count(".") < 5)
    assert manifest["filters"][0]["samples"][0]["document"] == first
    text.write_text("".join(json.dumps({"text": found}) + "\n" for found in kept), encoding="utf-8")
    assert main(["prepare", "bert_hdf5", *words, f"output={tmp_path / 'theirs'}"]) == 0
    ours, theirs = contents(tmp_path / "ours"), contents(tmp_path / "theirs")
    del ours["manifest.json"], theirs["manifest.json"]
    assert ours == theirs


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_merged_parts_equal_one_process(words: list[str], tmp_path: Path, count: int) -> None:
    assert main(["prepare", "bert_hdf5", *words, FILTERS, f"output={tmp_path / 'whole'}"]) == 0
    folders = [str(tmp_path / f"part-{number}") for number in range(1, count + 1)]
    for number, folder in enumerate(folders, 1):
        assert main(["prepare", "bert_hdf5", *words, FILTERS, f"output={folder}", f"part={number}/{count}"]) == 0
    assert main(["prepare", "merge", str(tmp_path / "merged"), *folders[::-1]]) == 0
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")


def test_filters_that_drop_all_are_refused(words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = [*words, "filters=[{bert_filters:dots: {least: 99}}]", f"output={tmp_path / 'ours'}"]
    assert main(["prepare", "bert_hdf5", *line]) == 2
    assert "the filters dropped all 60 documents (bert_filters:dots: 60 few_sentences)" in capfd.readouterr().err
    assert not (tmp_path / "ours").exists()
