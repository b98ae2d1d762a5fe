"""Folders of Hugging Face: one file or several, and messages for folders with other contents."""

from __future__ import annotations

import json
import math
import os
import time
from hashlib import sha1, sha256
from pathlib import Path

import pytest
import torch

from recipe_core.checkpoint.formats.hf import SAFE, Hf
from recipe_core.checkpoint.inspect import CheckpointFiles
from recipe_core.checkpoint.io.safetensors import write_tensors
from recipe_core.checkpoint.lazy import lazy
from recipe_core.checkpoint.locate import find
from recipe_core.checkpoint.settings import HfSettings
from recipe_core.errors import CheckpointError
from recipe_core.hooks.registry import load

WEIGHTS = {name: torch.randn(3, 5, generator=torch.Generator().manual_seed(1)) for name in ("a", "b", "c")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Hf().save(tmp_path, {"model": WEIGHTS, "files": {"config.json": '{"model_type": "toy"}'}})
    return tmp_path


def test_a_large_one_is_divided_and_whole_again(tmp_path: Path) -> None:
    Hf(HfSettings(shard_gb=130e-9)).save(tmp_path, {"model": WEIGHTS})  # 60 bytes each: two fit
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert json.loads((tmp_path / "model.safetensors.index.json").read_text())["metadata"] == {"total_size": 180}
    found = Hf().open(tmp_path)["model"]
    assert {name: tensor.read().equal(WEIGHTS[name]) for name, tensor in found.items()} == dict.fromkeys(WEIGHTS, True)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_verify_names_what_is_not_finite(tmp_path: Path, value: float) -> None:
    """Such a folder has no manifest and no check sums: its tensors are read."""
    Hf().save(tmp_path, {"model": {**WEIGHTS, "b": torch.tensor([1.0, value])}, "files": {"config.json": "{}"}})
    (problem,) = CheckpointFiles(load()).verify(tmp_path)
    assert problem == f"{tmp_path}: model.b holds values that are no finite numbers"


def test_the_config_tells_the_type_of_the_weights(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text()) == {"dtype": "float32", "model_type": "toy"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("[1]", r"config\.json: expected a JSON object, found list"), ("{", r"config\.json: is not JSON \(Expecting")],
)
def test_a_config_that_is_none(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        Hf().open(folder)


def test_files_of_the_hub_are_compared_with_its_hashes(tmp_path: Path) -> None:
    """In its cache they are links to what is called by its hash; in a folder of one's own, notes have it."""
    write_tensors(tmp_path / "x", {"w": lazy(torch.ones(2))})
    data, config = (tmp_path / "x").read_bytes(), b"{}"
    hashes = {SAFE: sha256(data).hexdigest(), "config.json": sha1(b"blob 2\0" + config).hexdigest()}
    blobs, cached, own = tmp_path / "blobs", tmp_path / "snapshots" / "1", tmp_path / "own"
    notes = own / ".cache" / "huggingface" / "download"
    for folder in (blobs, cached, notes):
        folder.mkdir(parents=True)
    for name, content in ((SAFE, data), ("config.json", config)):
        (blobs / hashes[name]).write_bytes(content)
        (cached / name).symlink_to(blobs / hashes[name])
        (own / name).write_bytes(content)
        (notes / f"{name}.metadata").write_text(f"{'0' * 40}\n{hashes[name]}\n{time.time()}\n")
    for folder in (cached, own):
        assert find(load(), folder).unchecked() == ""
        for name in hashes:
            before = (folder / name).stat()
            content = (folder / name).read_bytes()
            (folder / name).write_bytes(content[:-1] + b" ")
            os.utime(folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))
            with pytest.raises(CheckpointError, match=rf"{name}: does not hold the bytes that were downloaded"):
                find(load(), folder)
            (folder / name).write_bytes(content)
    os.utime(own / SAFE, (time.time() + 99,) * 2)  # changed later, by the user: the note is no longer about it
    assert "model.safetensors" in find(load(), own).unchecked()


def test_an_index_of_other_files(tmp_path: Path) -> None:
    Hf(HfSettings(shard_gb=1e-8)).save(tmp_path, {"model": {name: torch.ones(3) for name in "abc"}})
    one, two = (tmp_path / f"model-0000{number}-of-00003.safetensors" for number in (1, 2))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    with pytest.raises(CheckpointError, match=r"a is not in it, where the index has it"):
        Hf().open(tmp_path)
    two.write_bytes(first)
    with pytest.raises(CheckpointError, match=r"a is not in it, where the index has it"):
        Hf().open(tmp_path)


def test_a_pickle_of_something_else(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: expected a dict of tensors, found list"):
        Hf().open(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{}", r"index\.json: damaged \(KeyError\('weight_map'\)\)"),
        ('{"weight_map": {"a": "../x.safetensors"}}', r"refused, since it names a file outside its folder"),
        (f'{{"weight_map": {{"a": "{"x" * 300}"}}}}', r"index\.json: damaged \(OSError\(\d+, 'File name too long'\)\)"),
        ('{"weight_map": {"a": "x.safetensors"}}', r"x\.safetensors missing, which model\.safetensors\.index\.json"),
    ],
)
def test_an_index_that_leads_nowhere(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=message):
        Hf().open(tmp_path)
