"""Reading plain and packed shards for training: order, forked processes, and invalid shards."""

from __future__ import annotations

import multiprocessing
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from recipe_bert_dp.data import stream
from recipe_bert_dp.data.column import Column
from recipe_bert_dp.data.facts import facts
from recipe_bert_dp.data.samples import build
from recipe_bert_dp.data.shards import PLAIN, find, kind_of
from recipe_bert_dp.settings import BertHdf5
from recipe_core.errors import DataError
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run


def run(**train: Any) -> Run:
    return Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=Train(**train), cache=Path("unused"), vocabulary=31,
    )  # fmt: skip


def config(folder: Path, **changes: Any) -> BertHdf5:
    return BertHdf5(**{"files": (str(folder),), "sequence": 64, "max_predictions": 10, **changes})


def numbers(samples: Any, start: int, count: int) -> list[int]:
    return [int(n) for n in samples.read("train", start, count)["input_ids"][:, 0]]


@pytest.mark.parametrize("kind", ["shards", "packed"])
def test_order_depends_on_the_seed_alone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The order depends neither on the size of reads nor on ranks; each epoch has every row once, in another order."""
    folder = request.getfixturevalue(kind)
    monkeypatch.setattr(stream, "WINDOW", 100)
    rows = sum(len(h5py.File(path)["input_ids"]) for path in folder.rglob("*training_*.hdf5"))
    whole = build(config(folder), run()).read("train", 0, 2 * rows)
    assert {str(values.dtype) for values in whole.values()} == {"torch.int8", "torch.int32"}
    assert all(len(values) == 2 * rows for values in whole.values())
    epochs = [sorted(map(tuple, part.tolist())) for part in whole["input_ids"].split(rows)]
    assert epochs[0] == epochs[1]
    assert not torch.equal(*whole["input_ids"].split(rows))
    other = build(config(folder), run())
    for start, count in ((rows + 7, 90), (3, 1), (rows - 5, 10), (0, 64), (49, 2)):  # as ranks and resumed runs read
        part = other.read("train", start, count)
        assert part.keys() == whole.keys()
        assert all(torch.equal(part[name], whole[name][start : start + count]) for name in whole)
    for start in range(3, 2 * rows - 7, 7):  # consecutive reads, across boundaries of windows and epochs
        part = other.read("train", start, 7)
        assert all(torch.equal(part[name], whole[name][start : start + 7]) for name in whole)
    assert not torch.equal(
        build(config(folder), run(seed=2)).read("train", 0, rows)["input_ids"], whole["input_ids"][:rows]
    )
    tests = build(config(folder), run(eval_every=1)).read("valid", 0, 5)
    assert tests["input_ids"].shape == (5, 64)


def test_rows_of_many_shards_are_mixed(tmp_path: Path, write_numbered: Callable[..., int]) -> None:
    """A window has rows from several places, in another order than in the files."""
    first = 0
    for shard in range(7):
        first = write_numbered(tmp_path / f"training_{shard}.hdf5", first, 1500 + 100 * shard)
    samples = build(BertHdf5(files=(str(tmp_path),), sequence=8), Run(**{**vars(run()), "vocabulary": None}))
    order = np.array(numbers(samples, 0, 2 * first))
    assert sorted(order[:first]) == sorted(order[first:]) == list(range(first))
    _, ends = samples._stream("train")._epoch(0)
    windows = np.split(order[:first], ends[:-1])
    assert len(windows) == 7
    for window in windows[:-1]:
        assert len(set(window // 256)) >= 8
        assert abs(np.corrcoef(window, np.arange(window.size))[0, 1]) < 0.1
        neighbours = np.abs(np.diff(window)) == 1
        assert neighbours.mean() < 0.01


def test_slices_are_whole_chunks_of_the_file(tmp_path: Path, write_numbered: Callable[..., int]) -> None:
    """Chunks as h5py chooses them for the published scripts: thousands of rows, a few columns."""
    write_numbered(tmp_path / "a_training.hdf5", 0, 20_000, compression="gzip")
    write_numbered(tmp_path / "b_training.hdf5", 20_000, 700, chunks=True)
    samples = build(BertHdf5(files=(str(tmp_path),), sequence=8), Run(**{**vars(run()), "vocabulary": None}))
    assert sorted(numbers(samples, 0, 20_700)) == list(range(20_700))
    slices = samples._stream("train")._slices
    chunks = [max(file[name].chunks[0] for name in PLAIN) for file in map(h5py.File, sorted(tmp_path.iterdir()))]
    assert chunks[0] > 256
    for shard, chunk in enumerate(chunks):
        starts = slices[slices[:, 0] == shard, 1]
        assert all(start % min(stream.MOST_IN_SLICE, chunk * -(-256 // chunk)) == 0 for start in starts)


def test_patterns_and_list_files_name_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["x/training_1.hdf5", "x/training_2.h5", "x/test_1.hdf5", "y, z/training_3.hdf5"]
    for name in (*names, "x/vocab.txt", "x/.4.hdf5"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "list").write_text("# shards\nx/*training*\ny, z\n")
    monkeypatch.chdir(tmp_path)

    def found(*texts: str) -> list[str]:
        return [str(path) for path in find(texts)]

    assert found("x/*") == [names[2], names[0], names[1]]
    assert found("?, z", "**/*.h5", "x/training_2.h5") == [names[3], names[1]]
    assert found(f"@{tmp_path}/list") == [f"{tmp_path}/{names[n]}" for n in (0, 1, 3)]
    for text, problem in (
        ("x/*.txt", r"x/\*\.txt: no shard \(\*\.hdf5\) matches this pattern"),
        ("x/no", "x/no: there is no such file or folder"),
        ("@lost", "lost: the list file cannot be read"),
    ):
        with pytest.raises(DataError, match=problem):
            find([text])
    (tmp_path / "list").write_text("x\n0.5 y\n")
    with pytest.raises(DataError, match=r"list, line 2: y: shards take no weights, got 0\.5; name the path alone"):
        find(["@list"])


def test_names_that_tell_the_kind() -> None:
    kinds = {name: kind_of(Path(name)) for name in (
        "test_00001.hdf5", "wiki_test_0.hdf5", "latest_part1.hdf5", "x.hdf5", "Test.h5", "training_test.hdf5"
    )}  # fmt: skip
    assert [name for name, kind in kinds.items() if kind == "test"] == [
        "test_00001.hdf5",
        "wiki_test_0.hdf5",
        "Test.h5",
    ]


@pytest.mark.parametrize(
    "packing",
    [
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True, "compression_opts": 9},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"compression": "lzf"},
        {"shuffle": True},
        {"fillvalue": 7},
    ],
)
@pytest.mark.parametrize("kind", ["<i4", "i1", ">i8"])
def test_columns_are_what_h5py_reads(tmp_path: Path, packing: dict[str, Any], kind: str) -> None:
    """With any filters: whole chunks, parts of them, the end, rows never written, and one number per row."""
    values = np.random.default_rng(0).integers(-100, 100, (1000, 16))
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        wide = file.create_dataset("wide", (1400, 16), kind, chunks=(64, 16), **packing)
        flat = file.create_dataset("flat", (1400,), kind, chunks=(64,), **packing)
        parts = file.create_dataset("parts", (1400, 16), kind, chunks=(64, 4), **packing)
        for dataset in (wide, parts):
            dataset[:1000] = values
        flat[:1000] = values[:, 0]
    with h5py.File(tmp_path / "a.hdf5") as file:
        for dataset in file.values():
            direct = Column(dataset, "i1" if kind == "i1" else "<i4")
            for start, stop in ((0, 64), (64, 320), (960, 1024), (1344, 1400), (1088, 1152), (3, 100), (0, 1400)):
                values_read = np.empty((stop - start, *dataset.shape[1:]), "i1" if kind == "i1" else "<i4")
                direct.read(values_read, start)
                assert np.array_equal(values_read, dataset[start:stop]), (dataset.name, start, stop)


def test_whole_chunks_under_gzip_are_not_read_by_hdf5(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 would hold its global lock, and Python's, meanwhile."""

    def refuse(*_: Any) -> None:
        raise AssertionError("read by HDF5")

    samples = build(config(shards), run())
    monkeypatch.setattr(h5py.Dataset, "__getitem__", refuse)
    assert samples.read("train", 0, 300)["input_ids"].shape == (300, 64)


def first_ids(samples: Any, pipe: Any) -> None:
    pipe.send(samples.read("train", 0, 300)["input_ids"].numpy())


def test_handles_are_not_shared_with_a_forked_process(shards: Path) -> None:
    samples = build(config(shards), run())
    expected = samples.read("train", 0, 300)["input_ids"].numpy()
    samples._streams["train"]._window.cache_clear()
    samples._streams["train"]._current = stream.ShuffledWindow(0, 0, {})
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe()
    process = context.Process(target=first_ids, args=(samples, sender))
    process.start()
    assert receiver.poll(60)
    assert np.array_equal(receiver.recv(), expected)
    process.join(60)
    assert process.exitcode == 0
    assert np.array_equal(samples.read("train", 0, 300)["input_ids"].numpy(), expected)


def test_no_more_shards_are_open_than_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_numbered: Callable[..., int]
) -> None:
    monkeypatch.setattr(stream, "MOST_OPEN", 3)
    for shard in range(9):
        write_numbered(tmp_path / f"training_{shard}.hdf5", 10 * shard, 10)
    samples = build(BertHdf5(files=(str(tmp_path),), sequence=8), Run(**{**vars(run()), "vocabulary": None}))
    assert sorted(numbers(samples, 0, 90)) == list(range(90))
    assert len(samples._stream("train")._open) == 3


def refused(message: str, config: BertHdf5, *, before: bool = True) -> None:
    """Check the message when reading and, unless only rows show the problem, before a run."""
    with pytest.raises(DataError, match=message):
        build(config, run()).read("train", 0, 2000)
    assert bool(facts(config).problems) == before


def test_refuses_shards_that_do_not_fit(shards: Path, packed: Path, tmp_path: Path) -> None:
    refused(
        r"training_00000.hdf5: has 64 tokens a row, but data.sequence=128; set it to 64", config(shards, sequence=128)
    )
    refused("has 10 predictions a row, but data.max_predictions=9; set it to 10", config(shards, max_predictions=9))
    refused("another shard has 10 and 0", config(shards, files=(str(shards), str(packed))))
    refused("none: there is no such file", config(tmp_path / "none"))
    refused(r"hdf5: has one sample a row, but data.packed=true; make packed shards", config(shards, packed=True))
    refused(r"hdf5: has several samples a row, but data.packed=false", config(packed, packed=False))
    for kind, folder in ((False, shards), (True, packed)):
        assert not facts(config(folder, packed=kind)).problems
        assert facts(config(folder)).vocabulary == 28
    shutil.rmtree(shards / "test")
    with pytest.raises(DataError, match="no test shard"):
        build(config(shards), run(eval_every=1))
    rows = sum(len(h5py.File(path)["input_ids"]) for path in shards.rglob("*.hdf5"))
    assert facts(config(shards)).train_samples == rows


@pytest.mark.parametrize(
    ("name", "at", "value", "message"),
    [
        ("input_ids", (5, 3), 31, r"row 5: input_ids holds 31, expected 0 to 30: the vocabulary of the model has 31"),
        ("input_ids", (5, 3), -1, r"row 5: input_ids holds -1"),
        (
            "masked_lm_ids",
            (300, 0),
            70_000,
            r"row 300: masked_lm_ids holds 70000, .*raise model.vocabulary, or prepare",
        ),
        ("masked_lm_positions", (5, 0), 64, r"row 5: masked_lm_positions holds 64, expected 0 to 63; `recipe verify`"),
        ("segment_ids", (5, 0), 2, r"row 5: segment_ids holds 2, expected 0 to 1"),
        ("next_sentence_labels", (5,), -1, r"row 5: next_sentence_labels holds -1"),
        ("input_mask", (5, 7), 2, r"row 5: input_mask holds 2, expected 0 to 1"),
    ],
)
def test_numbers_out_of_range_are_reported(
    shards: Path, name: str, at: tuple[int, ...], value: int, message: str
) -> None:
    path = shards / "training" / "training_00002.hdf5"
    with h5py.File(path, "r+") as file:
        file[name][at] = value
    refused(f"{path}: {message}", config(shards), before=False)


def test_numbers_of_packed_rows_are_checked(packed: Path) -> None:
    path = packed / "training" / "training_packed_00000.hdf5"
    with h5py.File(path, "r+") as file:
        file["next_sentence_positions"][2, 1] = 64
    refused(f"{path}: row 2: next_sentence_positions holds 64, expected 0 to 63", config(packed), before=False)


def test_every_shard_with_a_problem_is_named_but_not_thousands(
    tmp_path: Path, write_numbered: Callable[..., int]
) -> None:
    for shard in range(30):
        write_numbered(tmp_path / f"training_{shard:02}.hdf5", 0, 2)
    problems = facts(BertHdf5(files=(str(tmp_path),))).problems
    assert len(problems) == 21
    assert problems[0].endswith("has 8 tokens a row, but data.sequence=128; set it to 8")
    assert problems[-1] == "data.files: and 10 more shards with a problem"


def test_a_chunk_that_is_too_short(shards: Path) -> None:
    path = shards / "training" / "training_00001.hdf5"
    with h5py.File(path, "r+") as file:
        file["input_mask"].id.write_direct_chunk((0, 0), zlib.compress(bytes(64)))
    refused(rf"{path}: damaged, rows 0 to .* \(a chunk of 64 bytes, expected 16384\)", config(shards), before=False)


def test_a_shard_that_is_damaged_inside(shards: Path) -> None:
    """Its header is valid, its numbers cannot be decompressed."""
    path = shards / "training" / "training_00001.hdf5"
    with h5py.File(path) as file:
        place = file["input_ids"].id.get_chunk_info(0)
    with path.open("r+b") as file:
        file.seek(place.byte_offset)
        file.write(b"\xff" * (place.size // 2))
    refused(f"{path}: damaged, rows 0 to .* cannot be read", config(shards), before=False)
