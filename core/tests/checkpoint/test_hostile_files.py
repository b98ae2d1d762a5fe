"""Malicious checkpoint files: each is refused, in bounded time and memory."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from recipe_core.checkpoint import manifest as manifests
from recipe_core.checkpoint.formats.dcp_metadata import read_metadata
from recipe_core.checkpoint.inspect import CheckpointFiles
from recipe_core.checkpoint.io import archive
from recipe_core.checkpoint.io.safetensors import read_tensors
from recipe_core.checkpoint.io.torch_save import read_tree
from recipe_core.checkpoint.manifest import Manifest
from recipe_core.data.digest import with_digest
from recipe_core.settings.job import resolve
from recipe_core.testing import toy
from recipe_core.testing.bounds import reading
from recipe_core.train.run import run


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def packed_bomb(path: Path) -> None:
    """An archive whose pickle unpacks to 256 MiB."""
    torch.save({"a": torch.ones(2)}, path)
    with zipfile.ZipFile(path) as archive:
        name = archive.namelist()[0].partition("/")[0]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}/data.pkl", "w") as record:
        for _ in range(1 << 8):
            record.write(bytes(1 << 20))


def repeated_lists(path: Path) -> None:
    """Thirty lists, each with the next one twice."""
    value: list[Any] = [1]
    for _ in range(30):
        value = [value, value]
    torch.save(value, path)


def circle(path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    torch.save(value, path)


def nested(path: Path) -> None:
    """A pickle whose lists are nested a hundred thousand deep; Python's pickler could not write it."""
    torch.save(1, path)
    with zipfile.ZipFile(path) as archive:
        name = archive.namelist()[0].partition("/")[0]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/data.pkl", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".")
        archive.writestr(f"{name}/version", b"3")


@pytest.mark.parametrize("make", [zeros, os.mkfifo, packed_bomb, repeated_lists, circle, nested])
def test_files_of_torch_save(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "model.pt"
    make(path)
    outcome = reading(read_tree, path)
    outcome.require_bounded(path.stat().st_size)
    assert outcome.outcome == "refused"
    assert str(path) in outcome.message


def unknown_method(path: Path) -> None:
    """An archive whose directory names a method of compression that there is not."""
    torch.save({"a": torch.ones(2)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 10] = 77
    path.write_bytes(data)


def unknown_letters(path: Path) -> None:
    """An archive with a name that says that it is UTF-8, and is not."""
    torch.save({"a": torch.ones(2)}, path)
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\3\4")
    data[at + 7] |= 8
    data[at + 30] = 0xE6
    path.write_bytes(data)


@pytest.mark.parametrize("make", [zeros, os.mkfifo, os.mkdir, unknown_method, unknown_letters])
def test_verify_names_an_archive_that_cannot_be_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "model.pt"
    make(path)

    def named() -> None:
        (problem,) = archive.damage(path)
        assert problem.startswith(path.name)
        archive.has_checksums(path)

    outcome = reading(named)
    outcome.require_bounded(0)
    assert outcome.outcome == "read"


def header(text: str | bytes, size: int | None = None) -> bytes:
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data) if size is None else size) + data


@pytest.mark.parametrize(
    "content",
    [
        header("[" * 500_000),
        header("{}", 1 << 60),
        header(json.dumps({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}})),
        header(json.dumps({"a": {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 4]}}) + "    "),
        header(json.dumps({f"a{n}": {"dtype": "F32", "shape": [0] * 60, "data_offsets": [0, 0]} for n in range(4000)})),
    ],
    ids=["deep", "long header", "beyond the end", "a size that overflows", "many dimensions"],
)
def test_safetensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    reading(read_tensors, path).require_bounded(len(content))


def test_safetensors_that_is_a_device(tmp_path: Path) -> None:
    zeros(tmp_path / "model.safetensors")
    outcome = reading(read_tensors, tmp_path / "model.safetensors")
    outcome.require_bounded(0)
    assert outcome.outcome == "refused"


def metadata(**changes: Any) -> Metadata:
    chunk = ChunkStorageMetadata(offsets=torch.Size([0]), sizes=torch.Size([2]))
    entry = TensorStorageMetadata(
        properties=TensorProperties(dtype=torch.float32), size=torch.Size([2]), chunks=[chunk]
    )
    for name, value in changes.items():
        owner = {"sizes": chunk, "offsets": chunk, "size": entry, "chunks": entry}.get(name)
        if owner is not None:
            setattr(owner, name, value)
    return Metadata(
        state_dict_metadata=changes.get("tensors", {"w": entry, "b": BytesStorageMetadata()}),
        planner_data=changes.get("planner", {"w": ("w",), "b": ("b",)}),
        storage_data=changes.get("storage", {MetadataIndex("w"): Info(), MetadataIndex("b"): Info()}),
    )


def Info(offset: Any = 0, length: Any = 8, relative_path: Any = "__0_0.distcp") -> Any:
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    return _StorageInfo(relative_path, offset, length)


def at_place(*place: Any) -> dict[str, Any]:
    name = ".".join(map(str, place))
    return {
        "tensors": {name: BytesStorageMetadata()},
        "planner": {name: place},
        "storage": {MetadataIndex(name): Info()},
    }


CHANGED = {
    "sizes that are lists": {"sizes": (1 << 40, [0])},
    "negative sizes": {"sizes": (-2,)},
    "sizes that are fractions": {"size": (2.0,)},
    "no pieces": {"chunks": None},
    "a tensor that is a number": {"tensors": {"w": 1, "b": BytesStorageMetadata()}},
    "tensors in a list": {"tensors": []},
    "a place that is a text": {"storage": {MetadataIndex("w"): Info(offset="0"), MetadataIndex("b"): Info()}},
    "a length that is a list": {"storage": {MetadataIndex("w"): Info(length=[0]), MetadataIndex("b"): Info()}},
    "a file that is a number": {"storage": {MetadataIndex("w"): Info(relative_path=1), MetadataIndex("b"): Info()}},
    "a name that is a number": {"storage": {MetadataIndex(1): Info()}},
    "places that are numbers": {"planner": {"w": 1, "b": ("b",)}},
    "places that are a list": {"planner": [1]},
    "no place": at_place(),
    "a place in a list that is no part of a dict": at_place(0),
    "a place in a list of a billion": at_place("b", 10**9),
    "a place in a list of a thousand and two": at_place("b", 1001),
    "a place before the first of a list": at_place("b", -1),
    "a place in a thousand dicts": at_place(*["b"] * 1000),
}


@pytest.mark.parametrize("name", CHANGED)
def test_metadata_of_wrong_types(tmp_path: Path, name: str) -> None:
    (tmp_path / "__0_0.distcp").write_bytes(bytes(8))
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata()))
    assert reading(read_metadata, tmp_path).outcome == "read"  # so that it is the change that is refused
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata(**CHANGED[name])))
    outcome = reading(read_metadata, tmp_path)
    outcome.require_bounded(1000)
    assert outcome.outcome == "refused"


def test_metadata_of_many_pieces(tmp_path: Path) -> None:
    """Cut along the second dimension, so that every piece has the same range in the first."""
    count = 4_000
    chunks = [ChunkStorageMetadata(offsets=torch.Size([0, n]), sizes=torch.Size([1, 1])) for n in range(count)]
    entry = TensorStorageMetadata(
        properties=TensorProperties(dtype=torch.float32), size=torch.Size([1, count]), chunks=chunks
    )
    (tmp_path / "__0_0.distcp").write_bytes(bytes(8))
    stored = {MetadataIndex("w", torch.Size([0, n])): Info(0, 4) for n in range(count)}
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({"w": entry}, {"w": ("w",)}, stored)))
    outcome = reading(read_metadata, tmp_path)
    assert outcome.outcome == "read"
    outcome.require_bounded((tmp_path / ".metadata").stat().st_size)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hostile") / "run"
    run(resolve(toy.registry(), "toy", ["train.steps=1", "train.device=cpu", "train.eval_every=0"]), out)
    return out / "checkpoints" / "step-1"


@pytest.mark.parametrize(("key", "value"), [("step", 7), ("format", "single"), ("step", float("inf"))])
def test_verify_names_a_manifest_that_says_something_else(trained: Path, tmp_path: Path, key: str, value: Any) -> None:
    folder = tmp_path / "copy"  # no name that says its step
    folder.mkdir()
    for file in trained.rglob("*"):
        if file.is_file():
            (folder / file.relative_to(trained)).write_bytes(file.read_bytes())
    content = json.loads((folder / manifests.NAME).read_text())
    assert CheckpointFiles(toy.registry()).verify(folder) == []
    del content["sha256"], content["manifest"]
    (folder / manifests.NAME).write_text(json.dumps(with_digest({**content, key: value})))
    (problem,) = CheckpointFiles(toy.registry()).verify(folder)
    assert manifests.NAME in problem


def test_verify_names_a_step_that_is_not_that_of_the_folder(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "step-3"
    folder.symlink_to(trained)
    (problem,) = CheckpointFiles(toy.registry()).verify(folder)
    assert problem == f"{folder}: {manifests.NAME} speaks of step 1"


def test_inspect_says_that_it_did_not_hash(trained: Path) -> None:
    facts = dict(CheckpointFiles(toy.registry()).inspect(trained, None).facts)
    assert facts["not checked"] == "the bytes of its files; `recipe verify` compares them"


def test_a_manifest_of_a_million_brackets(tmp_path: Path) -> None:
    (tmp_path / manifests.NAME).write_text("[" * 1_000_000)
    outcome = reading(Manifest.read, tmp_path)
    outcome.require_bounded(1_000_000)
    assert outcome.outcome == "refused"
