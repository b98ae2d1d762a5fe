"""Adapters of single layers: their values, their computation, their merge, and the facts of a model with them."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from recipe_core.checkpoint.adapter import Adapter
from recipe_core.checkpoint.lazy import lazy
from recipe_core.errors import CheckpointError, ConfigError
from recipe_core.hooks.specs import Structure
from recipe_core.train.building.transforms.lora import LoraLinear, lora, merge
from recipe_core.train.building.transforms.peft import peft_adapter
from recipe_core.train.building.transforms.settings import Lora


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(6, 10), "down": nn.Linear(10, 6)}) for _ in "12")
        self.embedding = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight


def net(**settings: object) -> Net:
    torch.manual_seed(3)
    module = lora(Lora(**settings), Net(), Structure(blocks="blocks.*"))  # type: ignore[arg-type]
    assert isinstance(module, Net)
    return module


def test_an_adapted_layer_computes_what_the_paper_says() -> None:
    layer = net(rank=2, alpha=6).get_submodule("blocks.0.up")
    assert isinstance(layer, LoraLinear)
    x = torch.randn(5, 6)
    plain = F.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), plain)  # B is zero
    with torch.no_grad():
        layer.lora_b.normal_()
    assert torch.equal(layer(x), plain + x @ layer.lora_a.t() @ layer.lora_b.t() * 3.0)
    torch.testing.assert_close(layer.product(x) + layer.bias, layer(x))
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert layer.lora_a.grad is not None


def test_adapters_alone_are_trained_and_drawn_as_linear_weights() -> None:
    module = net(rank=64)
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert trained == [f"blocks.{i}.{layer}.lora_{m}" for i in "01" for layer in ("up", "down") for m in "ab"]
    values = module.get_parameter("blocks.0.down.lora_a").detach()
    bound = 1 / math.sqrt(10)  # of nn.Linear: kaiming_uniform with a = sqrt(5)
    assert -bound <= float(values.min()) < -0.95 * bound
    assert 0.95 * bound < float(values.max()) <= bound
    assert abs(float(values.mean())) < 0.1 * bound
    assert not module.get_parameter("blocks.0.down.lora_b").any()
    assert not torch.equal(values, module.get_parameter("blocks.1.down.lora_a"))


def test_targets_and_further_trained_parameters() -> None:
    module = net(targets=("up", "blocks.1.*"), trained=("blocks.*.bias",))
    names = {name.rpartition(".")[0] for name, _ in module.named_parameters() if name.endswith("lora_a")}
    assert names == {"blocks.0.up", "blocks.1.up", "blocks.1.down"}
    assert all(
        parameter.requires_grad == (not name.endswith("weight")) for name, parameter in module.named_parameters()
    )
    with pytest.raises(ConfigError, match=r"^transform.lora.targets: head shares its weight with embedding; lora "):
        net(targets=("head",))


def test_by_default_what_is_trained_in_full_gets_no_adapter() -> None:
    module = nn.Sequential()
    module.add_module("base", nn.Linear(6, 6))
    module.add_module("pre_classifier", nn.Linear(6, 6))
    module.add_module("classifier", nn.Linear(6, 2))
    lora(Lora(trained=("*classifier",)), module, Structure())
    assert [name for name, parameter in module.named_parameters() if parameter.requires_grad] == [
        "base.lora_a", "base.lora_b",
        "pre_classifier.weight", "pre_classifier.bias", "classifier.weight", "classifier.bias",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("trained", "saved"),
    [
        ((), None),
        (("*head",), ["head", "pre_head"]),
        (("pre_head",), ["pre_head"]),
        (("head",), "does not fit pre_head."),  # peft would take every submodule whose name ends so
        (("norm.bias",), "does not fit norm.weight"),
        (("words",), "does not fit words.weight"),  # tied
        (("base",), "does not fit base.weight"),  # has an adapter
    ],
)
def test_peft_saves_submodules_that_were_trained_in_full(
    trained: tuple[str, ...], saved: list[str] | str | None
) -> None:
    shapes = {
        "base.weight": (6, 4), "base.lora_a": (2, 4), "base.lora_b": (6, 2), "norm.weight": (6,), "norm.bias": (6,),
        "words.weight": (9, 4), "pre_head.weight": (6, 6), "head.weight": (3, 6), "head.bias": (3,),
    }  # fmt: skip
    weights = {name: lazy(torch.zeros(shape)) for name, shape in shapes.items()}
    model = Adapter(ties={"out.weight": "words.weight"})
    if isinstance(saved, str):
        with pytest.raises(CheckpointError, match=saved):
            peft_adapter(Lora(rank=2, trained=trained), weights, model)
        return
    found = peft_adapter(Lora(rank=2, trained=trained), weights, model)
    assert json.loads(found.files["adapter_config.json"])["modules_to_save"] == saved
    heads = {f"base_model.model.{name}" for name in shapes if name.split(".")[0] in (saved or ())}
    adapters = {f"base_model.model.base.lora_{matrix}.weight" for matrix in "AB"}
    assert {name for link in found.links for name in link.theirs} == heads | adapters


def test_dropout_drops_inputs_of_adapters_alone() -> None:
    layer = net(rank=2, alpha=2, dropout=0.5).get_submodule("blocks.0.up")
    assert isinstance(layer, LoraLinear)
    with torch.no_grad():
        layer.lora_b.normal_()
    x = torch.randn(5, 6)
    plain = F.linear(x, layer.weight, layer.bias)
    torch.manual_seed(1)
    dropped = F.dropout(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(layer(x), plain + dropped @ layer.lora_a.t() @ layer.lora_b.t())
    layer.eval()
    assert torch.equal(layer(x), plain + x @ layer.lora_a.t() @ layer.lora_b.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_merge_is_computed_in_fp32_and_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, a, b, bias = (torch.randn(shape).to(dtype) for shape in ((10, 6), (2, 6), (10, 2), (10,)))
    named = {"up.weight": weight, "up.lora_a": a, "up.lora_b": b, "up.bias": bias}
    found = merge(Lora(rank=2, alpha=3), {name: lazy(tensor) for name, tensor in named.items()})
    assert list(found) == ["up.weight", "up.bias"]
    assert torch.equal(found["up.weight"].read(), (weight.float() + 1.5 * (b.float() @ a.float())).to(dtype))
    assert torch.equal(found["up.bias"].read(), bias)
