"""Adapters of single layers: their values, their computation, their merge, and the facts of a model with them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from recipe_core.checkpoint.lazy import lazy
from recipe_core.errors import ConfigError
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import Structure
from recipe_core.hooks.specs.loop import optimizer_facts
from recipe_core.layouts.materialise import materialise
from recipe_core.layouts.transformed import build_transformed
from recipe_core.train.building.build import Trainable
from recipe_core.train.building.transforms.lora import LoraLinear, lora, merge
from recipe_core.train.building.transforms.settings import Lora
from recipe_core.train.start.check import checked_job
from recipe_core.train.start.check.estimate import estimate


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


def test_values_without_and_with_the_meta_device_are_equal() -> None:
    job = checked_job(load(), "megatron_gpt:tiny", ["transforms=lora"])
    torch.manual_seed(5)
    whole, _ = build_transformed(job.model, job.transforms)
    with torch.device("meta"):
        later, _ = build_transformed(job.model, job.transforms)
    materialise(later, torch.device("cpu"))
    here, there = dict(whole.named_parameters()), dict(later.named_parameters())
    assert here.keys() == there.keys()
    assert all(torch.equal(tensor, there[name]) for name, tensor in here.items())
    assert all(tensor.requires_grad == there[name].requires_grad for name, tensor in here.items())


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


@pytest.mark.parametrize("recipe", ["megatron_gpt:tiny", "bert_dp:tiny"])
def test_facts_count_what_is_trained_and_what_is_frozen(recipe: str) -> None:
    job = checked_job(load(), recipe, ["transforms=lora", "transform.lora.rank=4"])
    facts, plain = job.facts.model, job.facts.plain_model
    assert facts is not None
    assert plain is not None
    with torch.device("meta"):
        module, _ = build_transformed(job.model, job.transforms)
    parameters = list(module.parameters())
    assert facts.parameters == sum(p.numel() for p in parameters if p.requires_grad)
    assert facts.frozen_parameters == plain.parameters == sum(p.numel() for p in parameters if not p.requires_grad)
    assert facts.blocks * facts.block_parameters == facts.parameters
    assert facts.frozen_block_parameters == plain.block_parameters
    assert facts.frozen_divided_parameters == plain.divided_parameters
    assert 0 < facts.divided_parameters < facts.parameters
    assert job.facts.data is not None
    figures = estimate(facts, job.facts.data, job.train, optimizer=optimizer_facts(job.optimizer, job.train, facts))
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    optimizer = job.optimizer.build(job.optimizer.config, Trainable(named=named, train=job.train))
    optimizer.make_states([p for _, p in named])
    states = [t for state in optimizer.state.values() for t in state.values() if t.ndim]
    assert figures.weights == 4 * (facts.parameters + plain.parameters)
    assert figures.gradients == 4 * facts.parameters
    assert figures.optimizer == sum(state.nbytes for state in states)
    assert figures.checkpoint == figures.weights + figures.optimizer
    assert 0.6 * plain.flops_per_sample < facts.flops_per_sample < plain.flops_per_sample
