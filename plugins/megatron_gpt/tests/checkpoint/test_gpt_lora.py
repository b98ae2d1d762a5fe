"""A GPT with adapters: conversions keep them, or merge them into the weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from recipe_core.cli.main import main
from recipe_core.hooks.registry import load
from recipe_core.testing.checkpoints import convert, equal, tensors
from recipe_core.train.run import run
from recipe_core.train.start.check import checked_job

WORDS = [
    "transforms=lora", "transform.lora.rank=2", "transform.lora.alpha=6", "train.steps=2", "train.eval_every=0",
    "train.device=cpu", "train.lr=0.05", "model.positions=32", "data.sequence=32", "layout=single",
]  # fmt: skip


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
