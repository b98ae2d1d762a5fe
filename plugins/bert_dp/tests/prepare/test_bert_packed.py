"""``recipe prepare bert_packed``, and ``recipe inspect`` and ``recipe verify`` for plain and packed shards."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from recipe_bert_dp.data.inspect import BertFiles
from recipe_bert_dp.data.shards import PACKED, PLAIN
from recipe_bert_dp.prepare import pack as packing
from recipe_bert_dp.prepare.pack import prepare
from recipe_bert_dp.settings import PreparePacked
from recipe_core.cli.main import main
from recipe_core.errors import ConfigError, DataError, DiskError


def arrays(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        return {name: file[name][:] for name in file}


def unpacked(folder: Path) -> Counter[tuple[Any, ...]]:
    """Samples of plain shards, with their counts."""
    samples: Counter[tuple[Any, ...]] = Counter()
    for path in sorted(folder.rglob("*.hdf5")):
        a = arrays(path)
        for row in range(len(a["input_ids"])):
            size, used = a["input_mask"][row].sum(), (a["masked_lm_positions"][row] > 0).sum()
            parts = [a[name][row, :size].tolist() for name in ("input_ids", "segment_ids")]
            parts += [a[name][row, :used].tolist() for name in ("masked_lm_positions", "masked_lm_ids")]
            samples[(*map(tuple, parts), int(a["next_sentence_labels"][row]))] += 1
    return samples


def of_rows(folder: Path) -> Counter[tuple[Any, ...]]:
    """Samples of packed shards, with their counts."""
    samples: Counter[tuple[Any, ...]] = Counter()
    for path in sorted(folder.rglob("*.hdf5")):
        a = arrays(path)
        assert [(name, a[name].dtype.str.replace("|", "")) for name in PACKED] == list(PACKED.items())
        for row in range(len(a["input_ids"])):
            for number in range(a["input_mask"][row].max()):
                here = np.flatnonzero(a["input_mask"][row] == number + 1)
                start = a["next_sentence_positions"][row, number]
                assert here[0] == start
                assert a["next_sentence_weights"][row, number] == 1
                assert np.array_equal(a["positions"][row, here], np.arange(here.size))
                places = a["masked_lm_positions"][row]
                inside = (places > 0) & np.isin(places, here)
                samples[
                    tuple(a["input_ids"][row, here].tolist()),
                    tuple(a["segment_ids"][row, here].tolist()),
                    tuple((places[inside] - start).tolist()),
                    tuple(a["masked_lm_ids"][row, inside].tolist()),
                    int(a["next_sentence_labels"][row, number]),
                ] += 1
    return samples


@pytest.mark.parametrize("most", [3, 0, 1])
def test_every_sample_is_packed_once(shards: Path, tmp_path: Path, most: int) -> None:
    settings = PreparePacked(inputs=(str(shards),), output=str(tmp_path / "packed"), max_samples=most, workers=1)
    manifest = prepare(settings)
    assert of_rows(tmp_path / "packed") == unpacked(shards)
    assert BertFiles().verify(tmp_path / "packed") == []
    counts = manifest["counts"]["training"]
    metadata = json.loads((tmp_path / "packed" / "training_metadata.json").read_text())
    assert metadata["number_of_sequences_dropped"] == 0
    assert metadata["avg_seq_per_sample"] == counts["samples"] / counts["rows"] == metadata["expected_speed_up"]
    assert metadata["packing_efficiency"] == counts["tokens"] / (64 * counts["rows"])
    slots = arrays(tmp_path / "packed" / "training" / "training_packed_00000.hdf5")["next_sentence_labels"].shape[1]
    assert slots == most or not most


def test_rows_of_another_length(shards: Path, tmp_path: Path) -> None:
    settings = PreparePacked(inputs=(str(shards),), output=str(tmp_path / "packed"), sequence=200, workers=1)
    prepare(settings)
    assert of_rows(tmp_path / "packed") == unpacked(shards)
    with pytest.raises(ConfigError, match="sequence: expected 0 or at least 64"):
        prepare(PreparePacked(inputs=(str(shards),), output=str(tmp_path / "short"), sequence=63))


def test_packing_is_the_same_each_time(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = {"inputs": (str(shards),), "samples_per_shard": 400}

    def contents(name: str) -> dict[str, bytes]:
        files = sorted(p for p in (tmp_path / name).rglob("*") if p.is_file())
        return {str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files}

    prepare(PreparePacked(output=str(tmp_path / "one"), workers=1, **common))
    prepare(PreparePacked(output=str(tmp_path / "two"), workers=2, **common))
    assert contents("one") == contents("two")
    note = packing.Output.note
    for limit in (2, 5, 7):

        def interrupted(output: packing.Output, entry: dict[str, Any], limit: int = limit) -> None:
            note(output, entry)
            if len(output.done) >= limit:
                raise KeyboardInterrupt

        monkeypatch.setattr(packing.Output, "note", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(PreparePacked(output=str(tmp_path / "three"), workers=1, overwrite=True, **common))
        monkeypatch.setattr(packing.Output, "note", note)
        prepare(PreparePacked(output=str(tmp_path / "three"), workers=1, overwrite=True, **common))
        assert contents("three") == contents("one")
        shutil.rmtree(tmp_path / "three")


def change(path: Path, name: str, at: tuple[int, ...], value: int) -> None:
    with h5py.File(path, "r+") as file:
        file[name][at] = value


def test_packing_refuses(shards: Path, packed: Path, tmp_path: Path) -> None:
    def refused(message: str, *inputs: Path) -> None:
        with pytest.raises(DataError, match=message):
            prepare(PreparePacked(inputs=tuple(map(str, inputs)), output=str(tmp_path / "new"), workers=1))
        assert not list(tmp_path.glob("*new*"))

    refused("training_packed_00000.hdf5: is packed already", packed / "training")
    refused("none: there is no such file", tmp_path / "none")
    (tmp_path / "empty").mkdir()
    refused(r"empty: no shard \(\*.hdf5\) in it", tmp_path / "empty")
    first = shards / "training" / "training_00000.hdf5"
    change(first, "input_mask", (3, 2), 0)
    refused("input_mask is not ones and then zeros", shards)
    other = tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        for name in PLAIN:
            shape = {"i": (2, 32), "s": (2, 32), "m": (2, 10), "n": (2,)}["i" if name == "input_mask" else name[0]]
            file[name] = np.zeros(shape, np.int32)
    refused("other.hdf5: has 32 tokens and 10 predictions a row, but .* has 64 and 10", first, other)
    with h5py.File(other, "r+") as file:
        del file["segment_ids"]
    refused("other.hdf5: lacks the array.s. segment_ids", other)
    other.write_bytes(first.read_bytes()[:5000])
    refused("other.hdf5: is truncated", other)
    other.write_bytes(b"no HDF5 at all")
    refused("other.hdf5: is no HDF5 file, or damaged", other)
    text = tmp_path / "my.txt"
    text.write_text("a text of one's own")
    first_line = f"recipe prepare bert_hdf5 inputs={text} vocabulary=vocab.txt output={tmp_path}/my-shards\n"
    run = f"recipe run bert_dp data.files={tmp_path}/my-shards model.vocabulary=30522 --out runs/my\n"
    refused(f"my.txt: is no HDF5 file; .* by\n  {first_line}  {run}  recipe generate runs/my$", text)


def test_inspect(shards: Path, packed: Path, vocabulary: Path) -> None:
    files = BertFiles()
    assert files.detect(shards)
    assert files.detect(packed / "training" / "training_packed_00000.hdf5")
    assert not files.detect(vocabulary)
    assert not files.detect(vocabulary.parent / "none")
    plain, full = files.inspect(shards, None), files.inspect(packed, None)
    assert plain.kind == "BERT shards (HDF5)"
    assert full.kind == "packed BERT shards (HDF5)"
    assert plain.lengths == full.lengths
    samples = sum(arrays(path)["input_ids"].shape[0] for path in shards.rglob("*.hdf5"))
    assert sum(count for _, count in plain.lengths) == samples
    facts, packed_facts = dict(plain.facts), dict(full.facts)
    assert facts["tokens"] == packed_facts["tokens"]
    assert float(facts["padding"][:-1]) > 5
    assert float(packed_facts["padding"][:-1]) < float(facts["padding"][:-1])
    assert facts["samples per row"] == "1.000"
    assert plain.example is not None
    assert plain.example.startswith("[CLS]")
    assert "(" in plain.example
    assert files.inspect(shards, vocabulary).example == plain.example


@pytest.mark.parametrize(
    ("name", "at", "value", "problem"),
    [
        ("input_mask", (5, 0), 0, "input_mask is not ones and then zeros"),
        ("input_ids", (5, 3), 500, "input_ids is not from 0 to below 28, as the vocabulary has"),
        ("input_ids", (5, 3), -1, "input_ids is not from 0"),
        ("masked_lm_ids", (5, 0), 999, "masked_lm_ids is not from 0"),
        ("masked_lm_ids", (5, 0), 4, "a special token is predicted"),
        ("masked_lm_positions", (5, 1), 1, "masked_lm_positions does not rise"),
        ("masked_lm_positions", (5, 0), 64, "masked_lm_positions is not below 64"),
        ("masked_lm_positions", (5, 0), 0, "no token is predicted"),
        ("segment_ids", (5, 63), 2, "segment_ids is not 0 or 1"),
        ("next_sentence_labels", (5,), 2, "next_sentence_labels is not 0 or 1"),
    ],
)
def test_verify_finds(shards: Path, name: str, at: tuple[int, ...], value: int, problem: str) -> None:
    path = shards / "training" / "training_00001.hdf5"
    change(path, name, at, value)
    problems = BertFiles().verify(shards)
    assert any(f"{path}: row 5: {problem}" in line for line in problems), problems
    assert any("SHA-256 differs" in line or "bytes instead of" in line for line in problems)


@pytest.mark.parametrize(
    ("name", "at", "value", "problem"),
    [
        ("input_mask", (0, 1), 3, "input_mask does not count the samples from 1"),
        ("positions", (0, 1), 5, "positions does not start again"),
        ("next_sentence_positions", (0, 0), 1, "next_sentence_positions is not where each sample starts"),
        ("next_sentence_weights", (0, 0), 0, "next_sentence_weights is not 1 for each sample"),
        ("next_sentence_labels", (0, 0), 3, "next_sentence_labels is not 0 or 1"),
    ],
)
def test_verify_finds_in_packed_rows(packed: Path, name: str, at: tuple[int, ...], value: int, problem: str) -> None:
    change(packed / "training" / "training_packed_00000.hdf5", name, at, value)
    problems = BertFiles().verify(packed)
    assert any(f"row 0: {problem}" in line for line in problems), problems


def test_verify_names_a_missing_shard(shards: Path) -> None:
    (shards / "training" / "training_00001.hdf5").unlink()
    assert any("training_00001.hdf5: is missing" in line for line in BertFiles().verify(shards))


def test_verify_names_the_first_shard_if_it_cannot_be_opened(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It used to be reported as a folder without a data set."""
    first, *rest = sorted(shards.rglob("*.hdf5"))
    first.write_bytes(first.read_bytes()[:300])
    capsys.readouterr()
    assert main(["verify", str(shards)]) == 1
    assert f"{first}: has 300 bytes instead of" in capsys.readouterr().out
    for other in rest:
        other.write_bytes(b"")
    for path in (shards, first):
        assert main(["verify", str(path)]) == 1
        assert str(first) in capsys.readouterr().out


def test_verify_says_that_there_are_no_hashes(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shards / "manifest.json").unlink()
    capsys.readouterr()
    assert main(["verify", str(shards)]) == 0
    assert f"{shards}: not checked: there is no manifest.json with hashes" in capsys.readouterr().out


@pytest.mark.parametrize("limit", [500, 20_000])
def test_full_disk(shards: Path, tmp_path: Path, limit: int) -> None:
    """While rows are planned or written: the message has the path that the user gave, and the next run continues."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    settings = PreparePacked(inputs=(str(shards),), output=str(tmp_path / "packed"), workers=1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(DiskError, match=rf"^{tmp_path}/packed: cannot be written \(.*File too large.*\); free"):
            prepare(settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "packed").exists()
    prepare(settings)
    assert BertFiles().verify(tmp_path / "packed") == []


def test_shards_are_not_packed_into_themselves(shards: Path) -> None:
    before = {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"output: .* holds what this preparation reads \("):
        prepare(PreparePacked(inputs=(str(shards),), output=str(shards), overwrite=True))
    assert {path: path.read_bytes() for path in shards.rglob("*") if path.is_file()} == before


def test_every_file_of_a_packed_set_is_listed_and_may_be_replaced(packed: Path, shards: Path) -> None:
    names = {str(p.relative_to(packed)) for p in packed.rglob("*") if p.is_file()}
    assert {*json.loads((packed / "manifest.json").read_text())["files"]} == names - {"manifest.json"}
    prepare(PreparePacked(inputs=(str(shards),), output=str(packed), overwrite=True, seed=7))
    assert json.loads((packed / "manifest.json").read_text())["settings"]["seed"] == 7
