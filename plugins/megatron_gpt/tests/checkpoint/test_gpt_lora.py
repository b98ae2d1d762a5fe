"""A GPT with adapters: conversions keep them, or merge them into the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from recipe_core.cli.main import main
from recipe_core.files import home
from recipe_core.hooks.registry import load
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run
from recipe_core.layouts.samples.build import build_samples
from recipe_core.testing.checkpoints import convert, equal, tensors
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

WORDS = [
    "transforms=lora", "transform.lora.rank=2", "transform.lora.alpha=6", "train.steps=2", "train.eval_every=0",
    "train.device=cpu", "train.lr=0.05", "model.positions=32", "data.sequence=32", "layout=single",
]  # fmt: skip

OF_PEFT = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with adapters."""
    out = tmp_path_factory.mktemp("lora") / "run"
    run(checked_job(load(), "megatron_gpt:tiny", WORDS), out)
    return out


def merged(folder: Path) -> dict[str, Tensor]:
    """The weights that the model alone should have."""
    learned = {name.removeprefix("model."): t for name, t in tensors(folder).items() if name.startswith("model.")}
    plain = {name: tensor for name, tensor in learned.items() if "lora_" not in name}
    for name in [name for name in learned if name.endswith("lora_a")]:
        layer = name.removesuffix(".lora_a")
        plain[f"{layer}.weight"] = learned[f"{layer}.weight"] + 3.0 * (learned[f"{layer}.lora_b"] @ learned[name])
    return plain


def test_a_conversion_to_another_format_keeps_the_adapters(trained: Path, tmp_path: Path) -> None:
    assert convert(trained, tmp_path / "single", "--to", "single") == 0
    assert equal(tensors(tmp_path / "single"), tensors(trained))
    assert main(["eval", str(tmp_path / "single"), "--device", "cpu"]) == 0


def test_hugging_face_gets_the_merged_weights(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(trained, tmp_path / "hf", "--to", "hf", "--drop", "optimizer") == 0
    assert "merged    lora, into the weights, in fp32" in capsys.readouterr().out
    sections = yaml.safe_load((tmp_path / "hf" / "job.yaml").read_text())
    assert "transform" not in sections
    assert "transforms" not in sections["train"]
    assert convert(tmp_path / "hf", tmp_path / "back", "--to", "single") == 0
    found, expected = tensors(tmp_path / "back"), merged(trained)
    assert {name.removeprefix("model.") for name in found} == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[f"model.{name}"], tensor), name
    assert main(["eval", str(tmp_path / "hf"), "--device", "cpu"]) == 0


def test_states_of_adapters_have_no_place_in_other_projects(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(trained, tmp_path / "megatron", "--to", "megatron") == 2
    shown = capsys.readouterr().err
    assert "megatron has no place for the optimizer's states of adapters; to convert the weights alone, add" in shown


def test_an_optimizer_or_a_model_without_adapters_has_no_place_in_peft(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(trained, tmp_path / "peft", "--to", "peft") == 2
    assert "peft holds no optimizer" in capsys.readouterr().err
    assert convert(trained, tmp_path / "hf", "--to", "hf", "--drop", "optimizer") == 0
    assert convert(tmp_path / "hf", tmp_path / "none", "--to", "peft", "--drop", "optimizer") == 2
    assert "and this model's transforms with weights are: none; to convert" in capsys.readouterr().err


@pytest.mark.peer
@OF_PEFT
def test_peft_loads_the_adapters_and_merges_them_as_we_do(trained: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    assert convert(trained, tmp_path / "peft", "--to", "peft", "--drop", "optimizer") == 0
    assert convert(trained, tmp_path / "hf", "--to", "hf", "--drop", "optimizer") == 0
    base = transformers.GPT2LMHeadModel.from_pretrained(base_folder(trained, tmp_path))
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "peft").eval()
    whole = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf").eval()
    tokens = torch.randint(0, 500, (2, 16), generator=torch.Generator().manual_seed(1))
    logits = adapted(tokens).logits
    assert (
        float((logits - transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "base")(tokens).logits).abs().max())
        > 0.01
    )
    torch.testing.assert_close(whole(tokens).logits, logits, atol=2e-5, rtol=0)
    merged_by_peft, ours = adapted.merge_and_unload().state_dict(), whole.state_dict()
    assert merged_by_peft.keys() == ours.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(merged_by_peft[name], tensor, atol=1e-6, rtol=0)


@pytest.mark.peer
@OF_PEFT
def test_losses_and_weights_of_training_are_those_of_peft(tmp_path: Path) -> None:
    """Both begin with the same weights and adapters, and see the same samples."""
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    words = [*WORDS, "model.dropout=0", "model.attention_dropout=0", "train.clip=0", "train.log_every=1"]
    for steps, name in ((1, "first"), (4, "ours")):
        zero = ["train.lr=0"] if steps == 1 else ["train.schedule=constant", "train.warmup_steps=0", "train.lr=0.01"]
        run(checked_job(load(), "megatron_gpt:tiny", [*words, f"train.steps={steps}", *zero]), tmp_path / name)
    for form in ("hf", "peft"):
        assert convert(tmp_path / "first", tmp_path / form, "--to", form, "--drop", "optimizer") == 0
        assert convert(tmp_path / "ours", tmp_path / f"{form}-ours", "--to", form, "--drop", "optimizer") == 0
    base = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf")  # B is zero: nothing was merged
    model = peft.PeftModel.from_pretrained(base, tmp_path / "peft", is_trainable=True)
    job = checked_job(load(), "megatron_gpt:tiny", [*words, "train.steps=4"])
    samples, train = build_samples(job.data, context(job.train)), job.train
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == job.facts.model.parameters  # type: ignore[union-attr]
    optimizer = torch.optim.AdamW(trained, lr=0.01, betas=train.betas, eps=train.eps, weight_decay=train.weight_decay)
    losses = []
    for step in range(4):
        batch = samples.read("train", step * train.global_batch, train.global_batch)
        logits = model(batch["tokens"].long()).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].long().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    ours = [row["loss"] for row in read_rows(tmp_path / "ours" / METRICS) if "loss" in row]
    assert ours == pytest.approx(losses, abs=2e-5)
    assert losses[-1] < losses[0]
    reread = peft.PeftModel.from_pretrained(
        transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf"), tmp_path / "peft-ours"
    ).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(reread[name], tensor, atol=1e-4, rtol=0)


def base_folder(trained: Path, tmp_path: Path) -> Path:
    """The model of ``trained`` without its adapters, as a folder of Hugging Face."""
    words = [word for word in WORDS if "lora" not in word]
    run(checked_job(load(), "megatron_gpt:tiny", [*words, "train.lr=0", "train.steps=1"]), tmp_path / "plain")
    assert convert(tmp_path / "plain", tmp_path / "base", "--to", "hf", "--drop", "optimizer") == 0
    return tmp_path / "base"


def context(train: Train) -> Run:
    """One process."""
    return Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1, train=train,
        cache=home(),
    )  # fmt: skip
