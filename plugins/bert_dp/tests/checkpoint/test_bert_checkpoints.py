"""Checkpoints of the published scripts: reading, resuming, starting from their weights, and writing.

What the scripts do is reimplemented here in plain torch and transformers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining, get_linear_schedule_with_warmup

from recipe_bert_dp.checkpoint import NeuronBertFormat
from recipe_bert_dp.model.bert import build as build_model
from recipe_bert_dp.settings import BertPretraining, NeuronBert
from recipe_core import Train
from recipe_core.checkpoint.formats.base import SaveContext
from recipe_core.checkpoint.state import apply_state, gather_state, weights
from recipe_core.cli.main import main
from recipe_core.errors import CheckpointError
from recipe_core.testing import run_tiny
from recipe_core.train import optim

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "positions": 64, "vocabulary": 1000}
TINY = BertPretraining(size="custom", **SIZES)
TRAIN = Train(steps=10, lr=3e-3, schedule="linear", warmup_steps=4, weight_decay=0.01, eps=1e-6)
NO_DECAY = ["bias", "LayerNorm"]
Published = tuple[BertForPreTraining, torch.optim.Optimizer, Any]


def bert_config() -> BertConfig:
    return BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def published(seed: int = 1) -> Published:
    """Model, optimizer and scheduler as the script makes them."""
    torch.manual_seed(seed)
    model = BertForPreTraining(bert_config())
    model.cls.predictions.decoder.bias = model.cls.predictions.bias
    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not any(part in n for part in NO_DECAY)], "weight_decay": 0.01},
        {"params": [p for n, p in named if any(part in n for part in NO_DECAY)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, eps=1e-6)
    return model, optimizer, get_linear_schedule_with_warmup(optimizer, 4, 10)


def train(parts: Published, first: int, last: int) -> list[float]:
    """Train on random batches; returns the losses."""
    model, optimizer, scheduler = parts
    losses = []
    for number in range(first, last):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(5, 1000, (4, 16), generator=generator)
        labels = torch.where(torch.rand(4, 16, generator=generator) < 0.2, ids, -100)
        following = torch.randint(0, 2, (4,), generator=generator)
        loss = model(input_ids=ids, labels=labels, next_sentence_label=following).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def write_published(path: Path, parts: Published, **changes: Any) -> Path:
    """Write ``ckpt_<step>.pt`` like the script; entries that are None are left out."""
    model, optimizer, scheduler = parts
    data = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
        "files": [3, "a_training_0.hdf5", "a_training_1.hdf5"], "epoch": 2, **changes,
    }  # fmt: skip
    torch.save({name: value for name, value in data.items() if value is not None}, path)
    return path


def read_published(path: Path) -> Published:
    """Resume from a file like the script."""
    parts = model, optimizer, scheduler = published(seed=2)
    tree = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(tree["model"], strict=True)
    optimizer.load_state_dict(tree["optimizer"])
    scheduler.load_state_dict(tree["scheduler"])
    assert isinstance(tree["files"][0], int)
    assert isinstance(tree["epoch"], int)
    return parts


def new_state(settings: Train = TRAIN) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    module, _ = build_model(TINY)
    optimizer = optim.build(list(module.named_parameters()), settings)
    state = {**gather_state(module, optimizer), "progress": {"step": 0, "consumed_samples": 0}}
    return module, optimizer, state


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, Published]:
    """A file of the script after three steps, and the script's state."""
    parts = published()
    train(parts, 0, 3)
    return write_published(tmp_path / "ckpt_3.pt", parts), parts


# Reading files of the scripts


def test_a_published_file_is_continued_as_the_script_would(file: tuple[Path, Published]) -> None:
    """The same weights, states and step; after one step with the same gradients, the same weights."""
    path, (model, script_optimizer, _) = file
    module, optimizer, state = new_state()
    NeuronBertFormat().load(path, state)
    apply_state(module, optimizer, state)
    assert same(weights(module), {n: t for n, t in model.state_dict().items() if n in weights(module)})
    assert state["progress"] == {"step": 3, "consumed_samples": None}
    assert {s["step"].item() for s in optimizer.state.values()} == {3.0}
    named = dict(model.named_parameters())
    for name, parameter in module.named_parameters():
        parameter.grad = torch.full_like(parameter, 0.01)
        named[name].grad = parameter.grad.clone()
    for group, other in zip(optimizer.param_groups, script_optimizer.param_groups, strict=True):
        group["lr"] = other["lr"]
    optimizer.step()
    script_optimizer.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter, named[name], rtol=1e-6, atol=1e-7)


def test_other_spellings(file: tuple[Path, Published], tmp_path: Path) -> None:
    """NVIDIA's names, DistributedDataParallel's prefix, a buffer of positions, steps in groups, fp16 with masters."""
    _, parts = file
    model, optimizer, _ = parts
    states = optimizer.state_dict()
    for group in states["param_groups"]:
        group["step"] = 3
    for state in states["state"].values():
        del state["step"]
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    tensors = {nvidia(f"module.{name}"): tensor.half() for name, tensor in model.state_dict().items()}
    del tensors["module.cls.predictions.decoder.bias"]
    tensors["module.bert.embeddings.position_ids"] = torch.arange(64)[None]
    path = write_published(
        tmp_path / "ckpt_28128.pt", parts, model=tensors, optimizer=states, scheduler=None, epoch=None,
        **{"master params": list(ordered)},
    )  # fmt: skip
    module, loaded_optimizer, state = new_state()
    NeuronBertFormat().load(path, state)
    apply_state(module, loaded_optimizer, state)
    assert same(weights(module), {n: t for n, t in model.state_dict().items() if n in weights(module)})
    assert state["progress"]["step"] == 28128
    assert {s["step"].item() for s in loaded_optimizer.state.values()} == {3.0}


def nvidia(name: str) -> str:
    """NVIDIA's name: three layers include their activation."""
    for part in ("intermediate", "pooler", "transform"):
        name = name.replace(f"{part}.dense.", f"{part}.dense_act.")
    return name


def test_one_group_in_the_models_order(file: tuple[Path, Published], tmp_path: Path) -> None:
    """An optimizer of ``model.parameters()``, as in other scripts."""
    model, _, _ = file[1]
    optimizer = torch.optim.AdamW(model.parameters())
    for number, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, number)
    optimizer.step()
    path = write_published(tmp_path / "ckpt_1.pt", file[1], optimizer=optimizer.state_dict())
    _, _, state = new_state()
    NeuronBertFormat().load(path, state)
    for number, (name, _) in enumerate(model.named_parameters()):
        assert state["optimizer"]["state"][name]["exp_avg"].unique().tolist() == pytest.approx([number * 0.1])


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("false",)


def as_written(file: Path) -> dict[str, Any]:
    tree: dict[str, Any] = torch.load(file, weights_only=True)
    return tree


def no_model(path: Path) -> None:
    tree = as_written(path)
    torch.save({"state_dict": tree.pop("model"), **tree}, path)


def forbidden(path: Path) -> None:
    torch.save(as_written(path) | {"epoch": Evil()}, path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def minimal(path: Path) -> None:
    tree = as_written(path)
    torch.save({name: tree[name] for name in ("model", "files", "epoch")}, path)


def other_sizes(path: Path) -> None:
    tree = as_written(path)
    tree["model"]["cls.seq_relationship.bias"] = torch.zeros(3)
    tree["optimizer"]["state"][45]["exp_avg"] = torch.zeros(3)
    tree["optimizer"]["state"][45]["exp_avg_sq"] = torch.zeros(3)
    torch.save(tree, path)


def other_names(path: Path) -> None:
    tree = as_written(path)
    tree["model"] = {name.replace("bert.pooler", "bert.poller"): tensor for name, tensor in tree["model"].items()}
    torch.save(tree, path)


def untied(path: Path) -> None:
    tree = as_written(path)
    tree["model"]["cls.predictions.decoder.weight"] = torch.zeros(1000, 64)
    torch.save(tree, path)


def other_groups(path: Path) -> None:
    tree = as_written(path)
    tree["optimizer"]["param_groups"][0]["params"].pop()
    torch.save(tree, path)


def no_optimizer_at_all(path: Path) -> None:
    torch.save(as_written(path) | {"optimizer": {"state": [1]}}, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_model, r"ckpt_3\.pt: it has no entry 'model'; expected a dict of model, optimizer, scheduler, files and"),
        (forbidden, r"ckpt_3\.pt: refused, since it names posix\.system, which no checkpoint needs"),
        (cut, r"ckpt_3\.pt: damaged, or no file of weights"),
        (minimal, r"ckpt_3\.pt: it holds no optimizer, so that no run can go on from it; .* train\.init_from="),
        (other_sizes, r"3 of 186 entries differ:\n  - model\.cls\.seq_relationship\.bias: found \[3\], expected \[2\]"),
        (
            other_names,
            r"bert\.pooler\.dense\.weight: not in the checkpoint; nearest there: model\.bert\.poller\.dense\.weight",
        ),
        (untied, r"decoder\.weight and bert\.embeddings\.word_embeddings\.weight differ, and this model has one"),
        (other_groups, r"its optimizer has groups of 17 and 28 tensors, and its model has 18 that decay and 28 biases"),
        (no_optimizer_at_all, r"its optimizer is no state_dict\(\) of PyTorch's \(KeyError\('param_groups'\)\)"),
    ],
)
def test_what_cannot_be_continued(file: tuple[Path, Published], damage: Callable[[Path], None], message: str) -> None:
    damage(file[0])
    with pytest.raises(CheckpointError, match=message):
        NeuronBertFormat().load(file[0], new_state()[2])


# Writing files for the scripts


def test_the_script_resumes_from_a_file_of_recipe(tmp_path: Path) -> None:
    """Names are loaded strictly, with states and schedule; the next losses equal those of an uninterrupted script."""
    parts = published()
    train(parts, 0, 3)
    expected = train(parts, 3, 6)
    module, optimizer, state = new_state()
    again = published()
    train(again, 0, 3)
    NeuronBertFormat().load(write_published(tmp_path / "ckpt_3.pt", again), state)
    apply_state(module, optimizer, state)
    form = NeuronBertFormat(NeuronBert(files=("x_training_0.hdf5",)))
    (tmp_path / "out").mkdir()
    form.save(tmp_path / "out", state, SaveContext(train=TRAIN))
    resumed = read_published(tmp_path / "out" / "ckpt_3.pt")
    assert resumed[2].get_last_lr() == again[2].get_last_lr()
    assert train(resumed, 3, 6) == expected
    assert torch.load(tmp_path / "out" / "ckpt_3.pt", weights_only=True)["files"] == [0, "x_training_0.hdf5"]


def test_lambs_settings_are_all_there(tmp_path: Path) -> None:
    """The script's Lamb reads them from the groups in the file, without defaults."""
    settings = Train(optimizer="lamb", trust_clip=1.0, lr=6e-3, steps=10)
    _, _, state = new_state(settings)
    form = NeuronBertFormat()
    form.save(tmp_path, state | {"progress": {"step": 4, "consumed_samples": 32}}, SaveContext(train=settings))
    for group in torch.load(tmp_path / "ckpt_4.pt", weights_only=True)["optimizer"]["param_groups"]:
        wanted = {"step": 4, "bias_correction": True, "grad_averaging": True, "max_grad_norm": 1.0, "trust_clip": True}
        assert group.items() >= {**wanted, "always_adapt": False, "betas": (0.9, 0.999), "eps": 1e-8}.items()


def test_nvidias_names_are_those_of_its_model(tmp_path: Path) -> None:
    _, _, state = new_state()
    form = NeuronBertFormat(NeuronBert(names="nvidia"))
    form.save(tmp_path, {"model": state["model"], "progress": {"step": 7}})
    names = set(torch.load(tmp_path / "ckpt_7.pt", weights_only=True)["model"])
    expected = {nvidia(name) for name in published()[0].state_dict()} - {"cls.predictions.decoder.bias"}
    assert names == expected


def test_a_run_that_saves_in_it_resumes_exactly(tmp_path: Path) -> None:
    args = ("checkpoint=neuron_bert", "train.steps=4", "train.save_every=2")
    whole = run_tiny("bert_dp", tmp_path / "whole", *args)
    run_tiny("bert_dp", tmp_path / "parts", *args, "train.stop_after=2")
    resumed = run_tiny("bert_dp", tmp_path / "parts", *args, "--processes", "1")
    assert resumed.column() == whole.column()
    folder = tmp_path / "parts" / "checkpoints" / "step-2"
    assert sorted(p.name for p in folder.iterdir()) == ["checkpoint.json", "ckpt_2.pt", "job.yaml"]


def test_position_in_the_shards(tmp_path: Path, write_numbered: Callable[..., int]) -> None:
    """``files`` and ``epoch`` as the script reads them: number of finished shards, all shards, finished epochs."""
    first = 0
    for shard in range(4):
        first = write_numbered(tmp_path / "data" / f"training_{shard}.hdf5", first, 6)
    args = (f"data.files={tmp_path / 'data'}", "data.sequence=8", "data.max_predictions=1", "train.eval_every=0")
    run_tiny("bert_dp", tmp_path / "run", *args, "checkpoint=neuron_bert", "train.save_every=1", "train.keep=0")
    shards = [str(tmp_path / "data" / f"training_{shard}.hdf5") for shard in range(4)]
    for step, epoch, index in ((1, 0, 1), (2, 0, 2), (3, 1, 0), (5, 1, 2)):  # 8 of 24 rows a step
        tree = torch.load(tmp_path / "run" / "checkpoints" / f"step-{step}" / f"ckpt_{step}.pt", weights_only=True)
        assert (tree["epoch"], tree["files"]) == (epoch, [index, *shards])


def test_entries_for_a_script_of_neuronx_distributed(tmp_path: Path, write_numbered: Callable[..., int]) -> None:
    """``global_step`` and ``epoch`` follow from the rows that the run has read; the data may be missing."""
    write_numbered(tmp_path / "data" / "training_0.hdf5", 0, 24)
    args = (f"data.files={tmp_path / 'data'}", "data.sequence=8", "data.max_predictions=1", "train.eval_every=0")
    run_tiny("bert_dp", tmp_path / "run", *args, "train.steps=5")
    for epoch in (1, 0):  # 40 rows of 24
        target = tmp_path / f"epoch-{epoch}"
        assert main(["convert", str(tmp_path / "run"), str(target), "--to", "nxd", "layout=old"]) == 0
        tree = torch.load(target / "tp_rank_00_pp_rank_00" / "checkpoint.pt", weights_only=True)
        assert (tree["global_step"], tree["epoch"]) == (5, epoch)
        (tmp_path / "data" / "training_0.hdf5").unlink(missing_ok=True)


# Published files through the real commands


def test_a_run_resumes_from_a_published_file(file: tuple[Path, Published], tmp_path: Path) -> None:
    """With any format of the run's own checkpoints; the next step is the fourth."""
    for form in ("dcp", "neuron_bert"):
        done = run_tiny("bert_dp", tmp_path / form, f"checkpoint={form}", "train.steps=4", f"train.resume={file[0]}")
        assert "continuing after step 3" in done.text
        assert list(done.column()) == [4]
        assert done.rows[-1]["consumed_samples"] == 4 * 8


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("model.positions=128",), "position_embeddings.weight: found [64, 64], expected [128, 64]"),
        (("model.hidden=32",), "44 of 46 entries differ"),
        (("train.resume=step-4",), "init_from, train.resume: both say where to begin"),
    ],
)
def test_weights_of_another_architecture(
    file: tuple[Path, Published],
    tmp_path: Path,
    args: tuple[str, ...],
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    line = ["run", "bert_dp:tiny", f"train.init_from={file[0]}", *args, "--out", str(tmp_path / "run")]
    assert main(line) == 2
    output = capfd.readouterr().err
    assert message in output
    assert "Traceback" not in output
