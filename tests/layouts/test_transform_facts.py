"""Adapters of the workspace's models: their values, the facts of a model with them, and what explains them."""

from __future__ import annotations

import pytest
import torch

from recipe_core.cli.main import main
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs.loop import optimizer_facts
from recipe_core.layouts.materialise import materialise
from recipe_core.layouts.transformed import build_transformed
from recipe_core.train.building.build import Trainable
from recipe_core.train.start.check import checked_job
from recipe_core.train.start.check.estimate import estimate


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


def test_describe_explains_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("transforms=lora", "transform.lora.rank=2")
    assert main(["show", "megatron_gpt:tiny", *words, "--describe", "transform.lora"]) == 0
    assert "transform.lora.rank=2" in capsys.readouterr().out
