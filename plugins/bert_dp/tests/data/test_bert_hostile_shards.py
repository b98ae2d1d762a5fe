"""Damaged HDF5 files: each is refused with a message, in bounded time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.inspect import BertFiles
from recipe_core.testing.bounds import reading


def write_valid(path: Path) -> None:
    """A valid shard of three rows."""
    with h5py.File(path, "w") as file:
        for name, kind in shards.PLAIN.items():
            shape = (3,) if name == "next_sentence_labels" else (3, 2 if name.startswith("masked") else 8)
            file[name] = np.ones(shape, dtype=kind)


def group(file: h5py.File) -> None:
    file.create_group("input_ids")


def no_values(file: h5py.File) -> None:
    file["input_ids"] = h5py.Empty("i4")


def never_written(file: h5py.File) -> None:
    file.create_dataset("input_ids", (1 << 40, 8), "i4", chunks=(256, 8), compression="gzip")


def long_rows(file: h5py.File) -> None:
    file.create_dataset("input_ids", (3, 1 << 40), "i4", chunks=(1, 1 << 20))


def large_chunks(file: h5py.File) -> None:
    file.create_dataset("input_ids", (3, 1 << 20), "i4", chunks=(3, 1 << 20), maxshape=(None, 1 << 20))
    del file["input_ids"]
    file.create_dataset("input_ids", (1 << 20, 64), "i4", chunks=(1 << 20, 64), compression="gzip")


def elsewhere(file: h5py.File) -> None:
    file.create_dataset("input_ids", (3, 8), "i4", external=[("/dev/zero", 0, h5py.h5f.UNLIMITED)])


def linked(file: h5py.File) -> None:
    file["input_ids"] = h5py.ExternalLink("/etc/hostname", "/input_ids")


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((3, 8), "i4")
    layout[:] = h5py.VirtualSource("/nowhere.hdf5", "input_ids", (3, 8))
    file.create_virtual_dataset("input_ids", layout)


def dangling(file: h5py.File) -> None:
    file["input_ids"] = h5py.SoftLink("/nothing")


def texts(file: h5py.File) -> None:
    file["input_ids"] = np.array([[b"a"] * 8] * 3, dtype="S1")


@pytest.mark.parametrize(
    "change", [group, no_values, never_written, long_rows, large_chunks, elsewhere, linked, virtual, dangling, texts]
)
def test_invalid_arrays(tmp_path: Path, change: Callable[[h5py.File], None]) -> None:
    path = tmp_path / "training.hdf5"
    write_valid(path)
    with h5py.File(path, "r+") as file:
        del file["input_ids"]
        change(file)
    for read in (BertFiles().verify, lambda path: BertFiles().inspect(path, None)):
        outcome = reading(read, path)
        outcome.require_bounded(path.stat().st_size)
    assert outcome.outcome == "refused"
    assert "input_ids" in outcome.message
    (problem,) = BertFiles().verify(path)
    assert "input_ids" in problem


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_only_files_are_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "training.hdf5"
    make(path)
    outcome = reading(lambda path: BertFiles().inspect(path, None), path)
    outcome.require_bounded(0)
    assert "is no regular file" in outcome.message


def test_every_cut_and_many_changed_bytes(tmp_path: Path) -> None:
    """Any damage of the small file gives a message or a result, never another exception or a crash."""
    path, valid = tmp_path / "training.hdf5", tmp_path / "valid.h5"
    write_valid(valid)
    content = valid.read_bytes()
    draw = np.random.default_rng(5)

    def verify_all() -> None:
        for size in range(0, len(content), 397):
            path.write_bytes(content[:size])
            BertFiles().verify(path)
        for place in draw.integers(0, len(content), 300):
            changed = bytearray(content)
            changed[place] ^= 1 << int(draw.integers(8))
            path.write_bytes(changed)
            BertFiles().verify(path)

    outcome = reading(verify_all)
    assert outcome.outcome == "read", outcome


def test_a_damaged_list_of_arrays(tmp_path: Path) -> None:
    """The file opens, and looking up a name raises."""
    path = tmp_path / "training.hdf5"
    write_valid(path)
    content = bytearray(path.read_bytes())
    content[content.index(b"HEAP")] ^= 1
    path.write_bytes(content)
    assert BertFiles().detect(path)
    (problem,) = BertFiles().verify(path)
    assert problem.startswith(f"{path}: is no HDF5 file, or damaged (")
