"""Muon against PyTorch's own, and what it trains and refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recipe_core import ConfigError, ModelFacts, Train, Trainable
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import Structure
from recipe_core.train.start.check import checked_job
from recipe_muon.optimizer import build, muon_matrices, orthogonalised
from recipe_muon.settings import MuonSettings, facts

SHAPES = [(32, 16), (16, 32), (24, 24)]


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def gradients(step: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


# In bf16 and without Nesterov's momentum, torch 2.13 normalises the momentum itself, in place.
@pytest.mark.parametrize(("dtype", "nesterov"), [(torch.float32, True), (torch.float32, False), (torch.bfloat16, True)])
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_steps_are_those_of_torch(adjust: str, nesterov: bool, dtype: torch.dtype) -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    ours, theirs = parameters(dtype), parameters(dtype)
    train = Train(lr=0.02, weight_decay=0.1)
    named = [(f"blocks.{number}.weight", p) for number, p in enumerate(ours)]
    config = MuonSettings(adjust=adjust, nesterov=nesterov)  # type: ignore[arg-type]
    made = build(config, Trainable(named=named, train=train, structure=Structure(blocks="blocks.*")))
    peer = torch.optim.Muon(
        theirs, lr=train.lr, weight_decay=0.1, momentum=0.95, nesterov=nesterov, adjust_lr_fn=adjust
    )
    for step in range(5):
        for mine, other, gradient in zip(ours, theirs, gradients(step, dtype), strict=True):
            mine.grad, other.grad = gradient.clone(), gradient.clone()
        made.step()
        peer.step()
        for mine, other in zip(ours, theirs, strict=True):
            assert (mine - other).abs().max() <= 1e-6


def test_the_others_take_the_steps_of_adamw() -> None:
    named = {"embedding.weight": (8, 4), "blocks.0.norm.weight": (4,), "blocks.0.bias": (4,)}
    ours = {name: nn.Parameter(torch.full(shape, 0.5)) for name, shape in named.items()}
    theirs = {name: nn.Parameter(p.detach().clone()) for name, p in ours.items()}
    matrix = nn.Parameter(torch.eye(4))
    train = Train(lr=0.02, weight_decay=0.1, betas=(0.8, 0.9))
    config = MuonSettings(adamw_lr_ratio=0.5)
    listed = [*ours.items(), ("blocks.0.weight", matrix)]
    made = build(config, Trainable(named=listed, train=train, structure=Structure(blocks="blocks.*")))
    groups = [
        {"params": [p for name, p in theirs.items() if decays == (name == "embedding.weight")], "weight_decay": decay}
        for decays, decay in ((True, 0.1), (False, 0.0))
    ]
    peer = torch.optim.AdamW(groups, lr=0.01, betas=(0.8, 0.9))
    for step in range(3):
        for name in named:
            gradient = torch.linspace(-1, 1, ours[name].numel()).view_as(ours[name]) * (step + 1)
            ours[name].grad, theirs[name].grad = gradient.clone(), gradient.clone()
        made.step()
        peer.step()
    for name in named:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)
    assert matrix.equal(torch.eye(4))  # it had no gradient


def test_singular_values_become_about_one() -> None:
    matrix = torch.randn(48, 20, generator=torch.Generator().manual_seed(0))
    kept = matrix.clone()
    values = torch.linalg.svdvals(orthogonalised(matrix, MuonSettings(compute="fp32")))
    assert 0.6 < values.min() < values.max() < 1.3
    assert matrix.equal(kept)


def names(structure: Structure, *patterns: str) -> list[str]:
    shapes = {
        "tokens.weight": (8, 4), "blocks.0.up.weight": (4, 4), "blocks.0.up.bias": (4,), "blocks.1.conv": (2, 2, 2),
        "blocks.1.up.weight": (4, 4), "blocksize": (4, 4), "output.weight": (8, 4),
    }  # fmt: skip
    named = [(name, nn.Parameter(torch.zeros(shape))) for name, shape in shapes.items()]
    found = muon_matrices(MuonSettings(matrices=patterns), Trainable(named=named, train=Train(), structure=structure))
    return [name for name, parameter in named if any(parameter is one for one in found)]


def test_it_trains_the_matrices_of_the_blocks_or_those_that_are_named() -> None:
    blocks = Structure(blocks="blocks.*")
    assert names(blocks) == ["blocks.0.up.weight", "blocks.1.up.weight"]
    assert names(blocks, "*.1.*", "out*") == ["blocks.1.up.weight", "output.weight"]
    assert names(Structure()) == []
    with pytest.raises(ConfigError, match=r"optimizer.matrices: no matrix among the parameters matches \(no blocks\)"):
        build(MuonSettings(), Trainable(named=[], train=Train()))


def test_shards_that_nobody_can_gather_are_refused() -> None:
    with pytest.raises(ConfigError, match="muon gathers whole matrices"):
        build(MuonSettings(), Trainable(named=[], train=Train(), traced=True))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["layout=fsdp", "layout.cpu_offload=true"], "layout.cpu_offload: optimizer=muon gathers whole matrices"),
        (["train.precision=bf16", "train.optimizer_states=fp32"], "train.optimizer_states: optimizer=muon does not"),
        (["train.precision=bf16", "train.stochastic_rounding=true"], "train.stochastic_rounding: optimizer=muon"),
        (["optimizer.momentum=1"], "optimizer.momentum: expected a number from 0 to below 1"),
        (["optimizer.momentun=0.9"], "optimizer.momentun: no such setting; did you mean 'momentum'"),
    ],
)
def test_what_it_cannot_do_is_said_before_the_run(words: list[str], problem: str) -> None:
    pytest.importorskip("recipe_megatron_gpt", reason="recipe-megatron-gpt is not installed")
    with pytest.raises(ConfigError, match=problem):
        checked_job(load(), "megatron_gpt:tiny", ["optimizer=muon", *words], 1)


@pytest.mark.parametrize(("precision", "bytes_each"), [("fp32", 4.0), ("bf16", 2.0)])
def test_memory_is_what_it_keeps(precision: Any, bytes_each: float) -> None:
    """A model of two blocks with a matrix of 16 x 16 each, and an embedding of 32 x 16."""
    train = Train(precision=precision)
    sizes: dict[str, Any] = dict.fromkeys(("flops_per_sample", "activation_values", "logits_values"), 0)
    model = ModelFacts(parameters=1024, blocks=2, block_parameters=256, recomputed_activation_values=0, **sizes)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    named = [
        (name, nn.Parameter(torch.ones(shape, dtype=dtype)))
        for name, shape in (("tokens", (32, 16)), ("blocks.0.w", (16, 16)), ("blocks.1.w", (16, 16)))
    ]
    made = build(MuonSettings(), Trainable(named=named, train=train, structure=Structure(blocks="blocks.*")))
    for _, parameter in named:
        parameter.grad = torch.ones_like(parameter)
    made.step()
    kept = [value for state in made.state.values() for key, value in state.items() if key != "step"]
    said = facts(MuonSettings(), train, model).bytes_per_parameter * model.parameters
    assert said == sum(value.nbytes for value in kept) == bytes_each * (2 * 512 + 512)
