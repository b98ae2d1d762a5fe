"""``recipe prepare bert_hdf5``: content of the shards, determinism, and invalid input."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from recipe_bert_dp.data.inspect import BertFiles
from recipe_bert_dp.data.shards import PLAIN
from recipe_bert_dp.data.vocabulary import Vocabulary
from recipe_bert_dp.prepare import hdf5 as stages
from recipe_bert_dp.prepare import tokens
from recipe_bert_dp.prepare.hdf5 import prepare
from recipe_bert_dp.settings import PrepareHdf5
from recipe_core.data.text import sentences
from recipe_core.errors import ConfigError, DataError, DiskError

Make = Callable[..., PrepareHdf5]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def samples(folder: Path, pattern: str) -> dict[str, Any]:
    parts = []
    for path in sorted(folder.rglob(pattern)):
        with h5py.File(path) as file:
            parts.append({name: file[name][:] for name in PLAIN})
    return {name: np.concatenate([part[name] for part in parts]) for name in PLAIN}


def test_layout_is_that_of_the_published_scripts(shards: Path) -> None:
    names = sorted(str(p.relative_to(shards)) for p in shards.rglob("*"))
    assert names[:2] == ["manifest.json", "test"]
    assert [n for n in names if n.endswith(".hdf5")] == [
        "test/test_00000.hdf5", *(f"training/training_0000{n}.hdf5" for n in range(4))
    ]  # fmt: skip
    with h5py.File(shards / "training" / "training_00000.hdf5") as file:
        rows = file["input_ids"].shape[0]
        assert {name: (values.shape, values.dtype.str) for name, values in file.items()} == {
            "input_ids": ((rows, 64), "<i4"),
            "input_mask": ((rows, 64), "|i1"),
            "segment_ids": ((rows, 64), "|i1"),
            "masked_lm_positions": ((rows, 10), "<i4"),
            "masked_lm_ids": ((rows, 10), "<i4"),
            "next_sentence_labels": ((rows,), "|i1"),
        }
        assert file["input_ids"].compression == "gzip"
    manifest = json.loads((shards / "manifest.json").read_text())
    assert manifest["counts"]["documents"] == 60
    assert manifest["counts"]["training"]["pairs"] == sum(
        facts["samples"] for name, facts in manifest["files"].items() if name.startswith("training")
    )
    assert BertFiles().verify(shards) == []


def test_every_sample_is_cut_from_the_documents(shards: Path, text: Path, vocabulary: Path) -> None:
    """Without masks, both segments are consecutive tokens of one document, or of two, according to the label."""
    wordpiece = Vocabulary.read(vocabulary, True).wordpiece()
    documents = []
    for line in text.read_text(encoding="utf-8").splitlines():
        ids, _ = wordpiece.encode(sentences(json.loads(line)["text"]))
        documents.append(f" {' '.join(map(str, ids.tolist()))} ")
    arrays = samples(shards, "*.hdf5")
    next_of = {0: 0, 1: 0}
    for row in range(len(arrays["input_ids"])):
        ids = arrays["input_ids"][row].copy()
        places = arrays["masked_lm_positions"][row]
        used = places[places > 0]
        ids[used] = arrays["masked_lm_ids"][row][: used.size]
        length, first = int(arrays["input_mask"][row].sum()), int((arrays["segment_ids"][row] == 0)[:64].argmin())
        assert ids[0] == 3
        assert ids[first - 1] == ids[length - 1] == 4
        assert not ids[length:].any()
        a, b = (f" {' '.join(map(str, part))} " for part in (ids[1 : first - 1], ids[first : length - 1]))
        homes_a, homes_b = ({n for n, d in enumerate(documents) if part in d} for part in (a, b))
        assert homes_a
        assert homes_b
        label = int(arrays["next_sentence_labels"][row])
        next_of[label] += 1
        if label:
            assert len(homes_a | homes_b) > 1
        else:
            assert homes_a & homes_b
    assert min(next_of.values()) > 100


def test_same_bytes_for_any_number_of_workers_and_at_any_time(settings: Make, tmp_path: Path) -> None:
    prepare(settings(output=str(tmp_path / "one"), workers=1))
    time.sleep(1.1)  # timestamps in the files would differ
    prepare(settings(output=str(tmp_path / "two"), workers=2))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    prepare(settings(output=str(tmp_path / "other"), seed=2))
    changed = contents(tmp_path / "other")
    assert changed["training/training_00000.hdf5"] != contents(tmp_path / "one")["training/training_00000.hdf5"]


@pytest.mark.parametrize("calls", [1, 5, 13, 14, 15])
def test_interrupted_and_continued_gives_the_same_bytes(
    settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """Interrupted after entries of the journal about batches of tokens, pairs or shards."""
    monkeypatch.setattr(tokens, "BATCH", 5000)
    monkeypatch.setattr(tokens, "EVERY", 10_000)
    prepare(settings(output=str(tmp_path / "whole")))
    remaining = calls
    note = stages.Output.note

    def interrupted(output: stages.Output, entry: dict[str, Any]) -> None:
        nonlocal remaining
        note(output, entry)
        remaining -= 1
        if remaining < 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(stages.Output, "note", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(settings())
    monkeypatch.setattr(stages.Output, "note", note)
    assert not (tmp_path / "out").exists()
    first = (tmp_path / ".out.part" / "journal.jsonl").read_text()
    with (tmp_path / ".out.part" / "work" / "tokens.bin").open("ab") as file:
        file.write(b"what was not noted")
    prepare(settings())
    assert len(first.splitlines()) > calls
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_failure_names_the_document(settings: Make, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one document, not the whole batch of the worker."""
    lines = text.read_text(encoding="utf-8").splitlines()
    lines[6] = json.dumps({"text": "A house. A poisonous river."})
    text.write_text("\n".join(lines), encoding="utf-8")

    class Poisoned:
        def __init__(self, vocabulary: Vocabulary) -> None:
            self.wordpiece = vocabulary.wordpiece()

        def encode(self, texts: list[str]) -> Any:
            if any("poisonous" in text for text in texts):
                raise ValueError("no")
            return self.wordpiece.encode(texts)

    monkeypatch.setattr(tokens, "_wordpiece", lambda path, lowercase: Poisoned(Vocabulary.read(path, lowercase)))
    refused(settings(), DataError, "text.jsonl.*7: ValueError: no")


def test_without_compression_the_same_samples(settings: Make, shards: Path, tmp_path: Path) -> None:
    prepare(settings(output=str(tmp_path / "plain"), gzip=False))
    plain, packed = samples(tmp_path / "plain", "*.hdf5"), samples(shards, "*.hdf5")
    assert all(np.array_equal(plain[name], packed[name]) for name in PLAIN)
    with h5py.File(tmp_path / "plain" / "training" / "training_00000.hdf5") as file:
        assert file["input_ids"].compression is None


def test_whole_words_are_masked_whole(settings: Make, tmp_path: Path, vocabulary: Path) -> None:
    prepare(settings(whole_word_mask=True))
    pieces = vocabulary.read_text(encoding="utf-8").split()
    arrays = samples(tmp_path / "out", "training_*.hdf5")
    whole = 0
    for row in range(len(arrays["input_ids"])):
        predicted = set(arrays["masked_lm_positions"][row].tolist()) - {0}
        real = arrays["input_ids"][row].copy()
        for place, number in zip(arrays["masked_lm_positions"][row], arrays["masked_lm_ids"][row], strict=True):
            real[place] = number if place else real[place]
        for place in range(1, 63):
            if pieces[real[place + 1]].startswith("##") and not pieces[real[place]].startswith("["):
                assert (place in predicted) == (place + 1 in predicted)
                whole += place in predicted
    assert whole > 100


def test_no_test_part(settings: Make, tmp_path: Path) -> None:
    manifest = prepare(settings(test_share=0))
    assert not (tmp_path / "out" / "test").exists()
    assert "test" not in manifest["counts"]


@pytest.mark.parametrize("sequence", [128, 512])
def test_statistics_of_real_text(settings: Make, data: Path, tmp_path: Path, sequence: int) -> None:
    """50 % random next, 15 % predicted (capped), 80/10/10, within sampling error."""
    most = 20 if sequence == 128 else 80
    manifest = prepare(
        settings(
            inputs=(str(data / "wiki-sample.jsonl.gz"),),
            vocabulary=str(data / "bert" / "vocab.txt"),
            gzip=False,
            sequence=sequence,
            max_predictions=most,
            dupe_factor=1,
            samples_per_shard=65_536,
        )
    )
    assert BertFiles().verify(tmp_path / "out") == []
    counts = manifest["counts"]["training"]
    free = counts["pairs"] - counts["single_sentence"]  # a chunk of one sentence has no other choice
    within(counts["random_next"] - counts["single_sentence"], free, 0.5)
    arrays = samples(tmp_path / "out", "training_*.hdf5")
    assert arrays["next_sentence_labels"].sum() == counts["random_next"]
    lengths = arrays["input_mask"].sum(axis=1)
    predicted = (arrays["masked_lm_positions"] > 0).sum(axis=1)
    assert np.array_equal(predicted, np.minimum(most, np.maximum(1, np.round(lengths * 0.15))))
    places = arrays["masked_lm_positions"]
    shown = np.take_along_axis(arrays["input_ids"], places, axis=1)[places > 0]
    real = arrays["masked_lm_ids"][places > 0]
    within(int((shown == 103).sum()), real.size, 0.8)
    within(int((shown == real).sum()), real.size, 0.1 + 0.1 / 30_522)
    assert not np.isin(real, [0, 101, 102, 103]).any()


def within(count: int, total: int, probability: float) -> None:
    """``count`` of ``total`` is within four standard deviations: true in all but one of 15,000 cases."""
    assert abs(count - total * probability) < 4 * np.sqrt(total * probability * (1 - probability))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_predictions": 5}, r"max_predictions: 5 contradicts sequence=64, of which masked_lm_prob=0.15 is 9"),
        ({"max_predictions": 62}, r"max_predictions: expected at most sequence - 3 = 61, got 62"),
        ({"sequence": 4}, "sequence: expected from 5 to 65535, got 4"),
        ({"vocabulary": "", "output": ""}, "vocabulary: expected a path.*\noutput: expected a path"),
        ({"masked_lm_prob": 0.0}, "masked_lm_prob: expected more than 0"),
        ({"dupe_factor": 0, "seed": -1, "inputs": ()}, "inputs: .*\nseed: .*got -1\ndupe_factor: .*got 0"),
    ],
)
def test_settings_are_checked(settings: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**changes)


def refused(settings: PrepareHdf5, error: type[Exception], message: str) -> None:
    """One message, and no files left."""
    folder = Path(settings.output).parent
    before = sorted(folder.iterdir())
    with pytest.raises(error, match=re.compile(message, re.DOTALL)):
        prepare(settings)
    assert sorted(folder.iterdir()) == before


def test_refuses_a_vocabulary(settings: Make, vocabulary: Path, tmp_path: Path) -> None:
    vocabulary.write_text("[PAD]\n[UNK]\n[SEP]\na\n")
    refused(settings(), DataError, r"vocabulary: .*vocab.txt lacks \[CLS\], \[MASK\] among its 4 lines")
    vocabulary.write_bytes(b"\xff\xfe")
    refused(settings(), DataError, "vocab.txt is no text in UTF-8")
    refused(settings(vocabulary=str(tmp_path / "none")), DataError, "none cannot be read .No such file")
    os.mkfifo(tmp_path / "pipe")
    refused(settings(vocabulary=str(tmp_path / "pipe")), DataError, "pipe is no text in UTF-8 .expected a regular file")


def test_refuses_inputs(settings: Make, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    refused(settings(inputs=(str(empty),)), DataError, "empty.txt: .*empty")
    empty.write_text("Just one document.")
    refused(settings(inputs=(str(empty),)), DataError, r"inputs: 1 document\(s\) with text, expected at least 4: half")
    refused(settings(inputs=(str(tmp_path / "none.txt"),)), DataError, "none.txt: there is no such file")


def test_refuses_an_output_that_exists(settings: Make, shards: Path) -> None:
    before = contents(shards)
    refused(settings(seed=3), ConfigError, "output: .* exists; name another folder, or set overwrite=true")
    assert contents(shards) == before
    prepare(settings(seed=3, overwrite=True))
    assert contents(shards).keys() == before.keys()
    assert contents(shards) != before


@pytest.mark.parametrize(("stage", "limit"), [("store", 10_000), ("shards", 100_000)])
def test_full_disk(settings: Make, tmp_path: Path, stage: str, limit: int) -> None:
    """A message, and no output; with space, the next call continues. A limit on file sizes stands for a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        # The path that the user gave, not that of the temporary folder.
        with pytest.raises(DiskError, match=rf"^{tmp_path}/out: cannot be written \(.*File too large.*\); free some"):
            prepare(settings(gzip=False))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out").exists()
    assert (tmp_path / ".out.part").exists() == (stage == "shards")
    prepare(settings(gzip=False))
    assert BertFiles().verify(tmp_path / "out") == []


def test_space_is_checked_beforehand(settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(DiskError, match=rf"^{tmp_path}/out: the shards needs .* MB and 0\.1 MB are free"):
        prepare(settings(gzip=False))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["text", "vocabulary", "folder", "pattern", "link"])
def test_overwriting_never_takes_an_input(settings: Make, tmp_path: Path, text: Path, name: str) -> None:
    """An input inside the output: input and earlier data set stay intact."""
    folder = tmp_path / "above" / "data"
    prepare(settings(output=str(folder)))
    changes: dict[str, Any] = {"inputs": (str(text),)}
    if name == "vocabulary":
        changes["vocabulary"] = str(folder / "vocab.txt")
    elif name == "link":
        (tmp_path / "link.txt").symlink_to(folder / "vocab.txt")
        changes["inputs"] = (str(text), str(tmp_path / "link.txt"))
    else:
        shutil.copy(text, folder / "mine.jsonl")
        inputs = {
            "text": folder / "mine.jsonl",
            "folder": tmp_path / "above",
            "pattern": tmp_path / "*" / "*" / "*.jsonl",
        }
        changes["inputs"] = (str(inputs[name]),)
    if name == "folder":  # whose shards are not text
        for path in folder.rglob("*.hdf5"):
            path.rename(path.with_name(f".{path.name}"))
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"output: .*data holds what this preparation reads \("):
        prepare(settings(output=str(folder), overwrite=True, **changes))
    assert contents(tmp_path) == before


def test_every_file_is_listed(shards: Path) -> None:
    names = {str(p.relative_to(shards)) for p in shards.rglob("*") if p.is_file()}
    assert {*json.loads((shards / "manifest.json").read_text())["files"]} == names - {"manifest.json"}
