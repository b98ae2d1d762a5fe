"""The model as neuronx-distributed's and torch_xla's files: divided and joined bit by bit, damage refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.checkpoint.locate import find
from recipe_core.cli.main import main
from recipe_core.hooks.registry import load
from recipe_core.testing.checkpoints import convert, equal, tensors
from recipe_megatron_gpt.model.gpt import GptModel, build
from recipe_megatron_gpt.settings import Gpt
from recipe_xla.checkpoint.testing import xser_load, xser_save

SMALL = Gpt(layers=2, hidden=32, heads=4, positions=16, vocabulary=104, dropout=0.0, attention_dropout=0.0)


@pytest.fixture
def module() -> GptModel:
    """All its tensors differ, those that begin as zeros and ones too."""
    torch.manual_seed(4)
    found = build(SMALL)[0]
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.normal_(0, 0.1)
    return found.eval()


NXD = [
    ("nxd", "tp=4", "xser=true"),
    ("nxd", "tp=2", "pp=2"),
    ("nxd", "layout=old", "tp=2", "writers=2"),
    ("nxd", "layout=old", "xser=true", "pp=2"),
    ("xser",),
    ("xser", "tp=2", "pp=2", "writers=4"),
]


@pytest.mark.parametrize("words", NXD, ids=" ".join)
def test_there_and_back_is_bit_equal(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Weights, optimizer and position."""
    first = write_checkpoint(module, optimizer=True)
    assert convert(first, tmp_path / "n", "--to", *words) == 0
    (tmp_path / "n" / "checkpoint.json").unlink()  # known by its files
    assert convert(tmp_path / "n", tmp_path / "back", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "back"))
    assert find(load(), tmp_path / "back").open()["progress"] == {"step": 2, "consumed_samples": 16}


def test_the_long_way_round(module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """dcp -> nxd (tp 4, xser) -> hf -> dcp, and dcp -> megatron (tp 2, pp 2) -> xser -> dcp with the optimizer."""
    first = write_checkpoint(module, optimizer=True)
    assert convert(first, tmp_path / "nxd", "--to", "nxd", "tp=4", "xser=true") == 0
    assert convert(tmp_path / "nxd", tmp_path / "hf", "--to", "hf", "--drop", "optimizer") == 0
    assert convert(tmp_path / "hf", tmp_path / "back", "--to", "dcp") == 0
    weights = {name: t for name, t in tensors(first).items() if name.startswith("model.")}
    assert equal(weights, tensors(tmp_path / "back"))
    assert convert(first, tmp_path / "m", "--to", "megatron", "tp=2", "pp=2") == 0
    assert convert(tmp_path / "m", tmp_path / "x", "--to", "xser", "tp=2") == 0
    assert convert(tmp_path / "x", tmp_path / "again", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "again"))


def test_the_newer_layout(module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """The files that neuronx-distributed looks for, and what torch_xla finds in them."""
    assert convert(write_checkpoint(module, optimizer=True), tmp_path / "n", "--to", "nxd", "tp=2", "xser=true") == 0
    tag = tmp_path / "n" / "step_2"
    names = {"checkpoint", "done", "model", "optim", "scheduler.pt", "user_content.pt"}
    assert {path.name for path in tag.iterdir()} == names
    file = tag / "model" / "dp_rank_00_tp_rank_01_pp_rank_00.pt"
    found, info = xser_load(file), torch.load(file.with_name(f"{file.name}.info.pt"), weights_only=True)
    assert len(found) == len(info) == len(list(module.parameters()))
    layer = module.blocks[1]
    assert torch.equal(found["blocks.1.mlp.down.weight"], layer.mlp.down.weight[:, 64:])
    assert torch.equal(found["blocks.1.attention.qkv.weight"], layer.attention.qkv.weight[48:])
    assert torch.equal(found["tokens.weight"], module.tokens.weight[52:])
    assert torch.equal(found["norm.weight"], module.norm.weight)
    states = xser_load(tag / "optim" / file.name)
    assert {tensor["shape"] for tensor in info.values()} >= {torch.Size([52, 32])}
    assert [len(group["params"]) for group in states["param_groups"]] == [10, 18]
    assert states["state"][0]["exp_avg"].shape == (52, 32)


def test_an_optimizer_takes_the_states(module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """PyTorch's own, with two groups as in scripts: its next step equals the run's."""
    first = write_checkpoint(module, optimizer=True)
    assert convert(first, tmp_path / "n", "--to", "nxd") == 0
    named = list(module.named_parameters())
    groups = [[p for _, p in named if (p.ndim > 1) == decays] for decays in (True, False)]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups])
    saved = torch.load(tmp_path / "n" / "step_2" / "optim" / "dp_rank_00_tp_rank_00_pp_rank_00.pt", weights_only=True)
    optimizer.load_state_dict(saved)
    there = tensors(first)
    for name, parameter in named:
        state = optimizer.state[parameter]
        assert torch.equal(state["exp_avg_sq"], there[f"optimizer.state.{name}.exp_avg_sq"])
        assert state["step"] == 2
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_what_torch_xla_wrote_is_read(module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    """Any name, a bare state dict or one in a dict; and the older layout with its tensors beside it."""
    expected = {f"model.{name}": tensor for name, tensor in module.state_dict().items()}
    xser_save({"model": module.state_dict(), "step": 5}, tmp_path / "weights.pt")
    xser_save(dict(module.state_dict()), tmp_path / "old" / "tp_rank_00_pp_rank_00")
    words = ("--to", "dcp", "--recipe", str(write_recipe(tmp_path)))
    assert convert(tmp_path / "weights.pt", tmp_path / "a", "--from", "xser", *words) == 0
    assert convert(tmp_path / "old", tmp_path / "b", *words) == 0
    assert equal(expected, tensors(tmp_path / "a"))
    assert equal(expected, tensors(tmp_path / "b"))
    assert find(load(), tmp_path / "a").open()["progress"]["step"] == 5


def write_recipe(folder: Path) -> Path:
    """A recipe with a model of these sizes, as `recipe show` prints it."""
    from dataclasses import asdict

    import yaml

    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"recipe": "megatron_gpt", "model": asdict(SMALL), "data": {"sequence": 16}}))
    return path


@pytest.mark.parametrize("full", [False, True])
def test_states_that_zero1_shared_out(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, full: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Over three data-parallel ranks, padded, as neuronx-distributed writes them; or merged by its script."""
    first = write_checkpoint(module, optimizer=True)
    assert convert(first, tmp_path / "n", "--to", "nxd", "tp=2") == 0
    for rank in range(2):
        ending = f"tp_rank_{rank:02}_pp_rank_00.pt"
        path = tmp_path / "n" / "step_2" / "optim" / f"dp_rank_00_{ending}"
        tree = torch.load(path, weights_only=True)
        path.unlink()
        for data in range(1 if full else 3):
            name = f"full_{ending}" if full else f"dp_rank_{data:02}_{ending}"
            torch.save(shared(tree, data, 1 if full else 3), path.with_name(name))
    (tmp_path / "n" / "checkpoint.json").unlink()
    assert convert(tmp_path / "n", tmp_path / "back", "--to", "dcp") == 0
    assert equal(tensors(first), tensors(tmp_path / "back"))
    if not full:
        last = path.with_name(f"dp_rank_02_{ending}")
        tree = torch.load(last, weights_only=True)
        tree["base_state"][1]["step"] += 1
        torch.save(tree, last)
        assert convert(tmp_path / "n", tmp_path / "x", "--to", "dcp") == 2
        assert "differ in the step of parameter 1, 3.0 and 2.0: files of two checkpoints" in capsys.readouterr().err
        path.with_name(f"dp_rank_01_{ending}").unlink()
        assert convert(tmp_path / "n", tmp_path / "x", "--to", "dcp") == 2


def shared(tree: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """One rank's shard of the states: its part of the rows, padded with zeros."""

    def part(kind: str, value: torch.Tensor) -> torch.Tensor:
        if kind == "step":
            return value
        rows = -(-value.shape[0] // ranks)
        padded = torch.cat([value, value.new_zeros(rows * ranks - value.shape[0], *value.shape[1:])])
        return padded[rank * rows :][:rows].clone()

    states = {number: {k: part(k, v) for k, v in state.items()} for number, state in tree["state"].items()}
    shapes = {number: list(state["exp_avg"].shape) for number, state in tree["state"].items()}
    return {"state": {}, "base_state": states, "shape_info": shapes, "param_groups": tree["param_groups"]}


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/should-not-exist",)


def spoil(tag: Path, how: str) -> None:
    """Damage such a folder."""
    last = "dp_rank_00_tp_rank_01_pp_rank_01.pt"
    model, optimizer = tag / "model" / last, tag / "optim" / last
    if how == "missing":
        model.unlink()
    elif how == "states":
        optimizer.unlink()
    elif how == "degree":
        for path in tag.glob("*/*_tp_rank_01_*"):
            path.unlink()
    elif how == "step":
        tree = torch.load(optimizer, weights_only=True)
        for group in tree["param_groups"]:
            group["step"] = 9
        torch.save(tree, optimizer)
    elif how == "unfinished":
        (tag / "done").unlink()
    elif how == "names":
        for path in tag.glob("model/*_pp_rank_01.pt"):
            tree = torch.load(path, weights_only=True)
            torch.save({name.replace("norm.weight", "nrom.weight"): tensor for name, tensor in tree.items()}, path)
    elif how == "evil":
        torch.save({**torch.load(model, weights_only=True), "x": Evil()}, model)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "missing",
            "3 of 4 files are there (tensor parallel 2, pipeline 2, by their names). Missing: tensor rank 1 of p",
        ),
        ("states", "optim: missing: tensor rank 1 of pipeline rank 1"),
        (
            "degree",
            "tokens.weight has 52 instead of 104 along dimension 0 in the files of 1 tensor-parallel rank(s): the",
        ),
        ("step", "is of step 9, and "),
        ("unfinished", "it has no file 'done', so that it was not written to its end"),
        ("names", "norm.weight: not in the checkpoint; nearest there: nrom.weight"),
        ("evil", "refused, since it names posix.system"),
    ],
)
def test_what_is_refused(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, how: str, message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert convert(write_checkpoint(module, optimizer=True), tmp_path / "n", "--to", "nxd", "tp=2", "pp=2") == 0
    (tmp_path / "n" / "checkpoint.json").unlink()
    spoil(tmp_path / "n" / "step_2", how)
    words = ("--drop", "optimizer") if how == "names" else ()
    assert convert(tmp_path / "n", tmp_path / "x", "--to", "dcp", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_tensor_that_is_missing(
    module: GptModel, write_checkpoint: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(write_checkpoint(module), tmp_path / "x", "--to", "xser") == 0
    (tmp_path / "x" / "checkpoint.json").unlink()
    assert main(["inspect", str(tmp_path / "x")]) == 0
    assert main(["verify", str(tmp_path / "x")]) == 0
    assert "1: tensor parallel 1, pipeline 1" in capsys.readouterr().out
    tensor = tmp_path / "x" / "checkpoint.xser.tensors" / "tensor_3.pt"
    first = tensor.with_name("tensor_0.pt")
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    assert main(["verify", str(tmp_path / "x")]) == 1
    tensor.unlink()
    assert convert(tmp_path / "x", tmp_path / "y", "--to", "dcp") == 2
    assert "tensor_3.pt: missing, which checkpoint.xser refers to" in capsys.readouterr().err
    shutil.rmtree(tensor.parent)
    assert convert(tmp_path / "x" / "checkpoint.xser", tmp_path / "y", "--to", "dcp") == 2
    assert "checkpoint.xser.tensors is missing, the folder of its tensors" in capsys.readouterr().err
