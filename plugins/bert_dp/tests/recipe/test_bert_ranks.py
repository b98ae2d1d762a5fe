"""A BERT as files per rank: tied tensors under both names, whole heads, and a bit-equal round trip."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from recipe_bert_dp.model.bert import build
from recipe_bert_dp.settings import BertPretraining
from recipe_core.checkpoint.formats.dcp import Dcp
from recipe_core.checkpoint.state import gather_state
from recipe_core.testing.checkpoints import convert, equal, tensors

TINY = BertPretraining(size="custom", layers=2, hidden=32, heads=2, positions=16, vocabulary=60)
WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A checkpoint of a run after two steps."""
    torch.manual_seed(1)
    module = build(TINY)[0]
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    for _ in range(2):
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape)
        optimizer.step()
    folder = tmp_path / "run"
    folder.mkdir()
    Dcp().save(folder, {**gather_state(module, optimizer), "progress": {"step": 2, "consumed_samples": 16}})
    sections = {"model": {"use": "bert_pretraining", **asdict(TINY)}, "train": {"lr": 1e-3}}
    (folder / "job.yaml").write_text(yaml.safe_dump(sections))
    return folder


@pytest.mark.parametrize(
    "args", [("nxd", "tp=2", "xser=true"), ("nxd", "tp=2", "pp=2"), ("nxd", "layout=old", "pp=2"), ("xser", "tp=2")]
)
def test_there_and_back_is_bit_equal(first: Path, tmp_path: Path, args: tuple[str, ...]) -> None:
    assert convert(first, tmp_path / "n", "--to", *args) == 0
    assert convert(tmp_path / "n", tmp_path / "back", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "back"))


def test_what_each_rank_holds(first: Path, tmp_path: Path) -> None:
    """The tied name of the embedding is in the last stage, with optimizer states of its own."""
    assert convert(first, tmp_path / "n", "--to", "nxd", "tp=2", "pp=2") == 0
    there = tensors(first)

    def read(kind: str, stage: int) -> Any:
        path = tmp_path / "n" / "step_2" / kind / f"dp_rank_00_tp_rank_01_pp_rank_{stage:02}.pt"
        return torch.load(path, weights_only=True)

    begin, end = read("model", 0), read("model", 1)
    assert torch.equal(begin[WORDS], there[f"model.{WORDS}"][30:])
    assert torch.equal(end["cls.predictions.decoder.weight"], begin[WORDS])
    assert torch.equal(end["cls.predictions.decoder.bias"], end["cls.predictions.bias"])
    key = "bert.encoder.layer.1.attention.self.key.weight"
    assert torch.equal(end[key], there[f"model.{key}"][16:])
    assert WORDS not in end
    assert not any(name.startswith("bert.encoder.layer.1.") for name in begin)
    groups = read("optim", 1)["param_groups"]
    assert sum(len(group["params"]) for group in groups) == len(end) - 1  # the bias counts once, the embedding too


def test_shards_are_merged(first: Path, tmp_path: Path) -> None:
    from recipe_core.cli.main import main

    assert convert(first, tmp_path / "n", "--to", "nxd", "tp=2", "pp=2") == 0
    assert main(["merge", str(tmp_path / "n"), str(tmp_path / "one")]) == 0
    files = [path.name for path in (tmp_path / "one" / "step_2" / "model").iterdir()]
    assert files == ["dp_rank_00_tp_rank_00_pp_rank_00.pt"]
    assert convert(tmp_path / "one", tmp_path / "back", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "back"))
    assert convert(first, tmp_path / "hf", "--to", "hf", "shard_gb=0.00001", "--drop", "optimizer") == 0
    assert main(["merge", str(tmp_path / "hf"), str(tmp_path / "whole")]) == 0
    assert [path.name for path in (tmp_path / "whole").glob("*.safetensors*")] == ["model.safetensors"]
