"""Checkpoints of AWS's tensor-parallel BERT script: reading, resuming, starting from their weights, and messages.

The script's model is Hugging Face's with sharded attention; embeddings, MLP and heads are whole on every rank. What the
script and neuronx-distributed do is reimplemented here in plain torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining, get_linear_schedule_with_warmup

from recipe_core.checkpoint.lazy import same_bits
from recipe_core.cli.main import main
from recipe_core.testing import run_tiny
from recipe_core.testing.checkpoints import convert, tensors
from recipe_xla.checkpoint.testing import xser_load, xser_save

STEP, EPOCH = 3, 1
OF_RELEASE, OF_SAMPLES = ["bias", "norm"], ["bias", "LayerNorm"]
"""Weights that do not decay in the script's copies of neuronx-distributed and aws-neuron-samples. Names have `Norm`,
so that the former's norm weights decay."""
COLUMNS = ("self.query.weight", "self.query.bias", "self.key.weight", "self.key.bias", "self.value.weight",
           "self.value.bias")  # fmt: skip


@dataclass
class Script:
    """The model of the script before it is divided, its optimizer and its schedule."""

    model: BertForPreTraining
    optimizer: torch.optim.Optimizer
    scheduler: Any

    def dense(self) -> dict[str, Tensor]:
        """Every tensor by its name in a state of recipe."""
        named = dict(self.model.named_parameters())
        entries = {f"model.{name}": tensor.detach() for name, tensor in named.items()}
        for name, parameter in named.items():
            state = self.optimizer.state[parameter]
            entries |= {f"optimizer.state.{name}.{kind}": torch.as_tensor(value) for kind, value in state.items()}
        return entries


def script(no_decay: list[str] = OF_RELEASE, dtype: torch.dtype = torch.float32) -> Script:
    """The script's state after three steps on random gradients, with the sizes of bert_tp:tiny."""
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=64,
    )  # fmt: skip
    model = BertForPreTraining(config).to(dtype)
    model.cls.predictions.decoder.bias = model.cls.predictions.bias
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not any(part in n for part in no_decay)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(part in n for part in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 8)
    for _ in range(STEP):
        for _, parameter in named:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        scheduler.step()
    return Script(model, optimizer, scheduler)


def part(name: str, tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """The shard that the attention's ColumnParallelLinear and RowParallelLinear keep of a tensor; others are whole."""
    if name.endswith(COLUMNS):
        return tensor.chunk(ranks, 0)[rank].clone()
    return tensor.chunk(ranks, 1)[rank].clone() if name.endswith("attention.output.dense.weight") else tensor


def rank_tree(whole: Script, rank: int, ranks: int) -> dict[str, Any]:
    """The file of the script on one rank: names in the order of transformers 4.26, steps as its AdamW counts them."""
    state = whole.model.state_dict()
    model = {"bert.embeddings.position_ids": torch.arange(64)[None]}  # a buffer that was saved until 4.31
    model |= {name: part(name, tensor, rank, ranks) for name, tensor in state.items()}
    names = {id(p): name for name, p in whole.model.named_parameters()}
    order = [names[id(p)] for group in whole.optimizer.param_groups for p in group["params"]]
    optimizer = whole.optimizer.state_dict()
    for number, kinds in optimizer["state"].items():
        own = {kind: part(order[number], kinds[kind], rank, ranks) for kind in ("exp_avg", "exp_avg_sq")}
        optimizer["state"][number] = {"step": STEP, **own}
    keys = ("lr", "betas", "eps", "weight_decay", "initial_lr", "params")
    groups = [{**{k: group[k] for k in keys}, "correct_bias": True} for group in optimizer["param_groups"]]
    return {
        "model": model, "global_step": STEP, "epoch": EPOCH,
        "optimizer": {"state": optimizer["state"], "param_groups": groups},
        "scheduler": whole.scheduler.state_dict(),
    }  # fmt: skip


def torch_save(tree: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tree, path)


def write_old(folder: Path, trees: list[dict[str, Any]], xser: bool = False) -> Path:
    """As `parallel_layers.checkpointing.save`, which the script calls."""
    for rank, tree in enumerate(trees):
        path = folder / f"tp_rank_{rank:02}_pp_rank_00"
        xser_save(tree, path) if xser else torch_save(tree, path / "checkpoint.pt")
    return folder


def write_new(folder: Path, trees: list[dict[str, Any]], xser: bool = False, tag: str = "step_3") -> Path:
    """As `trainer.save_checkpoint`, with the script's own entries as user content."""
    for rank, tree in enumerate(trees):
        for kind, key in (("model", "model"), ("optim", "optimizer")):
            path = folder / tag / kind / f"dp_rank_00_tp_rank_{rank:02}_pp_rank_00.pt"
            (xser_save if xser else torch_save)(tree[key], path)
    torch_save(trees[0]["scheduler"], folder / tag / "scheduler.pt")
    torch_save({key: trees[0][key] for key in ("global_step", "epoch")}, folder / tag / "user_content.pt")
    for marker in ("checkpoint", "done"):
        (folder / tag / marker).write_text("1")
    return folder


def trees_of(whole: Script, ranks: int = 2) -> list[dict[str, Any]]:
    return [rank_tree(whole, rank, ranks) for rank in range(ranks)]


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], Path]] = {
    "old": write_old,
    "old-xser": lambda folder, trees: write_old(folder, trees, xser=True),
    "new": write_new,
    "new-xser": lambda folder, trees: write_new(folder, trees, xser=True),
}
RECIPE = ("--recipe", "bert_tp:tiny")


def same(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> bool:
    assert actual.keys() == expected.keys()
    return all(same_bits(tensor.float(), actual[name].float()) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("writer", "ranks", "no_decay"),
    [*((writer, 2, OF_RELEASE) for writer in WRITERS), ("old", 1, OF_RELEASE), ("old", 4, OF_SAMPLES),
     ("new-xser", 4, OF_SAMPLES)],
)  # fmt: skip
def test_every_tensor_is_that_of_the_whole_model(
    tmp_path: Path, writer: str, ranks: int, no_decay: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights and optimizer states are bit-equal; the buffer that the model lacks is reported."""
    whole = script(no_decay)
    source = WRITERS[writer](tmp_path / "output", trees_of(whole, ranks))
    assert convert(source, tmp_path / "mine", "--to", "dcp", *RECIPE) == 0
    output = capsys.readouterr().out
    assert same(whole.dense(), tensors(tmp_path / "mine"))
    assert "passed over  bert.embeddings.position_ids: a buffer that bert_pretraining does not have" in output


def test_inspect_counts_the_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(write_old(tmp_path / "output", trees_of(script())))]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["optimizer", "184", "tensors", "of"] in [line[:4] for line in lines]  # two of 46 parameters, on two ranks


def test_a_run_resumes(tmp_path: Path) -> None:
    """Bit-equal to resuming from the same model in one file of the data-parallel script."""
    whole = script(OF_SAMPLES)
    sources = {"tp": write_old(tmp_path / "output", trees_of(whole)), "dp": tmp_path / "ckpt_3.pt"}
    state = {"model": whole.model.state_dict(), "optimizer": whole.optimizer.state_dict()}
    torch.save({**state, "scheduler": whole.scheduler.state_dict(), "files": [0], "epoch": 0}, sources["dp"])
    args = ("train.steps=5", "train.eval_every=0")
    runs = {n: run_tiny("bert_tp", tmp_path / n, *args, f"train.resume={path}") for n, path in sources.items()}
    output = runs["tp"].text
    assert (
        "continuing after step 3\nnot taken: bert.embeddings.position_ids: a buffer that bert_pretraining does"
        in output
    )
    for key in ("loss", "grad_norm"):
        assert list(runs["tp"].column(key)) == [4, 5]
        assert runs["tp"].column(key) == runs["dp"].column(key)


def test_a_run_begins_with_its_weights(tmp_path: Path) -> None:
    source = write_new(tmp_path / "output", trees_of(script()), xser=True)
    args = ("train.steps=1", "train.eval_every=0", f"train.init_from={source}")
    run = run_tiny("bert_tp", tmp_path / "run", *args)
    assert "not taken: bert.embeddings.position_ids: a buffer" in run.text
    assert "not in it, and drawn at random" not in run.text


MLP = "bert.encoder.layer.1.intermediate.dense.weight"


def spoil(trees: list[dict[str, Any]], how: str) -> None:
    """Damage the files of two ranks."""
    last = trees[1]
    if how == "weight":
        last["model"][MLP] = last["model"][MLP].clone()
        last["model"][MLP][3, 5] += 0.5
    elif how in ("state", "step"):
        norm = 4  # of the first group: after three embeddings and the norm of these
        state = last["optimizer"]["state"][norm - 1]
        last["optimizer"]["state"][norm - 1] = state | (
            {"step": 9} if how == "step" else {"exp_avg": -state["exp_avg"]}
        )
    elif how == "shape":
        for tree in trees:
            tree["model"][MLP] = tree["model"][MLP][:100].clone()
    elif how == "uneven":
        trees[0]["model"][MLP], last["model"][MLP] = (part.clone() for part in last["model"][MLP].split([100, 156]))
    elif how == "optimizer":
        del last["optimizer"]
    elif how == "parameter":
        for tree in trees:
            tree["model"]["bert.embeddings.positions"] = torch.zeros(3)
    elif how == "embedding":
        tied = {id(last["model"][name]) for name in last["model"] if "word_embeddings" in name}
        changed = torch.zeros(1000, 64)
        last["model"] = {
            name: changed if id(t) in tied or "decoder.weight" in name else t for name, t in last["model"].items()
        }


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("weight", f"{MLP} is the same on all tensor-parallel ranks, and the files of ranks 0 and 1 have other values"),
        ("weight", "have other values of it (1 of 16,384 differ, by 0.5 at most)"),
        ("state", "the optimizer's exp_avg of bert.embeddings.LayerNorm.weight is the same on all"),
        ("step", "the optimizer's step of bert.embeddings.LayerNorm.weight is the same on all"),
        ("optimizer", "the file of tensor rank 1, pipeline rank 0 holds no optimizer, and others do"),
        ("embedding", "bert.embeddings.word_embeddings.weight is the same on all tensor-parallel ranks"),
        ("shape", f"  - {MLP}: tensor-parallel ranks 0 to 1 hold [100, 64] each, and the model has [256, 64]"),
        ("uneven", f"  - {MLP}: tensor-parallel ranks 0 to 1 hold [100, 64], [156, 64], and the model has [256, 64]"),
        ("parameter", "bert.embeddings.positions: in the checkpoint, and not in "),
    ],
)  # fmt: skip
def test_inconsistent_files_are_refused(
    tmp_path: Path, how: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Differing copies, and shapes that do not form the whole tensor; the message names the tensor."""
    trees = trees_of(script())
    spoil(trees, how)
    drop = ("--drop", "optimizer") if how in ("shape", "uneven", "parameter") else ()
    source = write_old(tmp_path / "output", trees)
    assert convert(source, tmp_path / "mine", "--to", "dcp", *RECIPE, *drop) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


def test_one_rank_of_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_old(tmp_path / "output", trees_of(script())[:1])
    assert convert(source, tmp_path / "mine", "--to", "dcp", *RECIPE) == 2
    assert "these are parts of 2, so files are missing or wrongly named" in capsys.readouterr().err


def test_sixteen_bits(tmp_path: Path) -> None:
    """As the script writes them under XLA_DOWNCAST_BF16."""
    whole = script(dtype=torch.bfloat16)
    source = write_old(tmp_path / "output", trees_of(whole))
    assert convert(source, tmp_path / "mine", "--to", "dcp", *RECIPE) == 0
    assert same(whole.dense(), tensors(tmp_path / "mine"))


def write_tags(folder: Path, *names: str) -> Path:
    """Checkpoints in this order, a second apart; the number at a tag's end is its step."""
    for number, name in enumerate(names):
        trees = trees_of(script())
        for tree in trees:
            tree["global_step"] = number
        write_new(folder, trees, tag=name)
        os.utime(folder / name / "done", (1_600_000_000 + number,) * 2)
    return folder


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("step_2", "step_10"), 1),
        (("epoch_1_step_20", "epoch_2_step_5"), 1),
        (("good", "best"), 1),  # by the time alone, as in neuronx-distributed
        (("step_10", "step_2"), None),  # it takes step_2
        (("step_10", "final"), None),
    ],
)
def test_the_newest_of_several(
    tmp_path: Path, names: tuple[str, str], taken: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that neuronx-distributed takes; if the step numbers disagree, the user has to name one."""
    source = write_tags(tmp_path / "output", *names)
    rc = convert(source, tmp_path / "mine", "--to", "dcp", *RECIPE)
    captured = capsys.readouterr()
    if taken is not None:
        assert rc == 0
        assert f"(nxd, step {taken})" in captured.out
        return
    assert rc == 2
    assert (
        f"By the time of its file 'done', which neuronx-distributed goes by, {names[1]}; by its number" in captured.err
    )
    assert convert(source / names[1], tmp_path / "mine", "--to", "dcp", *RECIPE) == 0
    assert "(nxd, step 1)" in capsys.readouterr().out


def test_an_incomplete_checkpoint_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_tags(tmp_path / "output", "step_1", "step_2")
    (source / "step_2" / "done").unlink()
    assert convert(source, tmp_path / "mine", "--to", "dcp", *RECIPE) == 0
    assert "(nxd, step 0)" in capsys.readouterr().out


@pytest.mark.parametrize("args", [("layout=old",), ("layout=old", "xser=true"), ("layout=new",)], ids=" ".join)
def test_entries_that_a_script_resumes_from(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Step and epoch of the source, under the script's names; read back, and written again."""
    source = write_old(tmp_path / "output", trees_of(script()))
    assert convert(source, tmp_path / "again", "--to", "nxd", "tp=4", *args, *RECIPE) == 0
    assert convert(tmp_path / "again", tmp_path / "twice", "--to", "nxd", "tp=2", "layout=old") == 0
    path = tmp_path / "again" / "tp_rank_03_pp_rank_00"
    if "layout=new" in args:
        tree = torch.load(tmp_path / "again" / "step_3" / "user_content.pt", weights_only=True)
    else:
        tree = xser_load(path) if "xser=true" in args else torch.load(path / "checkpoint.pt", weights_only=True)
        assert tree["scheduler"]["last_epoch"] == STEP
    assert (tree["global_step"], tree["epoch"]) == (STEP, EPOCH)
    tree = torch.load(tmp_path / "twice" / "tp_rank_01_pp_rank_00" / "checkpoint.pt", weights_only=True)
    assert (tree["global_step"], tree["epoch"]) == (STEP, EPOCH)
    assert convert(tmp_path / "twice", tmp_path / "mine", "--to", "dcp") == 0
    assert same(script().dense(), tensors(tmp_path / "mine"))


def test_the_script_resumes_from_a_converted_checkpoint(tmp_path: Path) -> None:
    """On one rank: names are loaded strictly, with states, schedule and the keys that the script reads."""
    first = script(OF_SAMPLES)
    source = write_old(tmp_path / "output", trees_of(first))
    assert convert(source, tmp_path / "again", "--to", "nxd", "layout=old", *RECIPE) == 0
    tree = torch.load(tmp_path / "again" / "tp_rank_00_pp_rank_00" / "checkpoint.pt", weights_only=True)
    resumed = script(OF_SAMPLES)
    with torch.no_grad():
        for parameter in resumed.model.parameters():
            parameter.zero_()
            resumed.optimizer.state[parameter]["exp_avg"].zero_()
    resumed.model.load_state_dict(tree["model"], strict=True)
    resumed.optimizer.load_state_dict(tree["optimizer"])
    resumed.scheduler.load_state_dict(tree["scheduler"])
    assert same(first.dense(), resumed.dense())
    assert (tree["global_step"], tree["epoch"], resumed.scheduler.last_epoch) == (STEP, EPOCH, STEP)
