"""A folder of Hugging Face's: in one file or several, and what is said of one that holds something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from recipe_core.errors import CheckpointError
from recipe_core.hf import Hf
from recipe_core.plugin import HfSettings

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


def test_a_pickle_of_something_else(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: expected a dict of tensors, found list"):
        Hf().open(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{}", r"index\.json: damaged \(KeyError\('weight_map'\)\)"),
        ('{"weight_map": {"a": "../x.safetensors"}}', r"refused, since it names a file outside its folder"),
        ('{"weight_map": {"a": "x.safetensors"}}', r"x\.safetensors missing, which model\.safetensors\.index\.json"),
    ],
)
def test_an_index_that_leads_nowhere(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=message):
        Hf().open(tmp_path)
