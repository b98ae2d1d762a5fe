"""AdamW: its groups, the bits of torch's fused one, PyTorch's formula in fp64, and states of every width."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recipe_core import Train
from recipe_core.train.optim import adam, adamw, build, decays, set_learning_rate, slices

WIDTHS: list[dict[str, Any]] = [
    {},
    {"precision": "bf16"},
    {"precision": "bf16", "stochastic_rounding": True},
    {"precision": "bf16", "optimizer_states": "fp32"},
    {"precision": "bf16", "optimizer_states": "fp32", "stochastic_rounding": True},
    {"precision": "bf16", "optimizer_states": "master"},
]


@pytest.fixture(params=["fused", "foreach"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both implementations; the second is for devices without a fused kernel."""
    if request.param == "foreach":
        for module in (adam, adamw):
            monkeypatch.setattr(module, "has_fused_adamw", lambda device, dtype: False)
    return request.param


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that cut rows, whole matrices and lists of small tensors.

    A multiple of what PyTorch computes at once: the rest of a tensor is computed by other instructions, which may round
    the last bit in another way.
    """
    monkeypatch.setattr(slices, "_CPU_CHUNK", 16)


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 32), nn.LayerNorm(32), nn.Linear(32, 10), nn.Conv1d(4, 3, 4)).to(dtype)


def give_gradients(module: nn.Module, step: int) -> None:
    """The same for every model of this form, rounded to bf16 for all widths."""
    generator = torch.Generator().manual_seed(step)
    for p in module.parameters():
        p.grad = torch.randn(p.shape, generator=generator).bfloat16().to(p.dtype)


def trained(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> nn.Module:
    for step in range(steps):
        give_gradients(module, step)
        optimizer.step()
    return module


def theirs(module: nn.Module, train: Train, **how: bool) -> torch.optim.Optimizer:
    groups = [
        {"params": [p for p in module.parameters() if p.ndim > 1], "weight_decay": train.weight_decay},
        {"params": [p for p in module.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, **how)


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(p.equal(q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"optimizer_states": "master"}, "optimizer_states: master keeps bf16 weights in fp32 too"),
        ({"stochastic_rounding": True}, "stochastic_rounding: it rounds to bf16 weights, and with precision=fp32"),
        (
            {"precision": "bf16", "stochastic_rounding": True, "optimizer_states": "master"},
            "stochastic_rounding: optimizer_states=master keeps all of each update",
        ),
        ({"optimizer": "lamb", "trust_clip": -1.0}, "trust_clip: expected at least 0, got -1.0"),
        ({"schedule_power": 0.0}, "schedule_power: expected more than 0, got 0.0"),
    ],
)
def test_settings_that_exclude_each_other(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Train(**settings)


def test_biases_and_norms_do_not_decay() -> None:
    module = nn.Sequential(nn.Embedding(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    optimizer = build(module.named_parameters(), Train(weight_decay=0.3))
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.3, 0.0)
    assert {id(p) for p in decayed["params"]} == {id(module[0].weight), id(module[2].weight)}
    assert {id(p) for p in plain["params"]} == {id(module[1].weight), id(module[1].bias), id(module[2].bias)}


def test_biases_of_several_experts_do_not_decay() -> None:
    assert not decays("experts.bias", nn.Parameter(torch.zeros(4, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_has_the_bits_of_the_fused_adamw_of_torch(dtype: torch.dtype) -> None:
    train = Train(lr=0.02, weight_decay=0.3)
    ours, reference = model(dtype), model(dtype)
    trained(ours, build(ours.named_parameters(), train))
    trained(reference, theirs(reference, train, fused=True))
    assert equal(ours, reference)


def test_equals_the_plain_adamw_of_torch_in_fp64(kernel: str, small_chunks: None) -> None:
    train = Train(lr=0.02, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-4)
    ours, reference = model(torch.float64), model(torch.float64)
    trained(ours, build(ours.named_parameters(), train))
    trained(reference, theirs(reference, train, foreach=False))
    for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-14)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_a_master_copy_is_the_training_in_fp32(optimizer: str, kernel: str, small_chunks: None) -> None:
    """From the same bf16 values on, the master weights are bit by bit those of an fp32 run; the weights are these."""
    ours, reference = model(torch.bfloat16), model(torch.bfloat16).float()
    settings: dict[str, Any] = {"optimizer": optimizer, "lr": 0.02}
    made = build(ours.named_parameters(), Train(precision="bf16", optimizer_states="master", **settings))
    trained(ours, made)
    trained(reference, build(reference.named_parameters(), Train(**settings)))
    for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
        assert made.state[p]["master"].equal(q)
        assert p.equal(q.bfloat16())


@pytest.mark.parametrize("stochastic", [False, True])
def test_fp32_states_are_those_of_a_run_in_fp32(stochastic: bool, kernel: str, small_chunks: None) -> None:
    """Adam's moments know nothing of the weights, so that they are the same bits; each weight is one rounding away."""
    train = Train(lr=0.02, precision="bf16", optimizer_states="fp32", stochastic_rounding=stochastic, weight_decay=0.1)
    ours, reference = model(torch.bfloat16), model(torch.bfloat16).float()
    mine, peer = build(ours.named_parameters(), train), build(reference.named_parameters(), Train(weight_decay=0.1))
    for step in range(3):
        with torch.no_grad():
            for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
                q.copy_(p)
        set_learning_rate(peer, 0.02)
        for module, optimizer in ((ours, mine), (reference, peer)):
            give_gradients(module, step)
            optimizer.step()
        for p, q in zip(ours.parameters(), reference.parameters(), strict=True):
            assert all(mine.state[p][name].equal(peer.state[q][name]) for name in ("exp_avg", "exp_avg_sq"))
            assert between(p.detach(), q.detach()) if stochastic else p.equal(q.bfloat16())


def between(rounded: Tensor, exact: Tensor) -> bool:
    """True if each bf16 number is one of the two neighbours of the fp32 one, or it itself."""
    below = (exact.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)  # towards zero
    above = ((exact.view(torch.int32) >> 16) + (exact != below.float())).to(torch.int16).view(torch.bfloat16)
    return bool(((rounded == below) | (rounded == above)).all())


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_the_size_of_chunks_changes_nothing(
    optimizer: str, widths: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Train(optimizer=optimizer, lr=0.02, **widths)  # type: ignore[arg-type]
    found = []
    for size in (16, 64, 1 << 18):
        monkeypatch.setattr(slices, "_CPU_CHUNK", size)
        module = model(torch.bfloat16 if train.precision == "bf16" else torch.float32)
        found.append(trained(module, build(module.named_parameters(), train)))
    if optimizer == "adamw":
        assert equal(found[0], found[2])
        assert equal(found[1], found[2])
    else:  # norms are summed in another order
        for p, q in zip(found[0].parameters(), found[2].parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=2**-8 if p.dtype == torch.bfloat16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_a_parameter_that_gets_no_gradient_is_left_alone_and_joins_late(optimizer: str, widths: dict[str, Any]) -> None:
    train = Train(optimizer=optimizer, lr=0.02, **widths)  # type: ignore[arg-type]
    dtype = torch.bfloat16 if train.precision == "bf16" else torch.float32
    whole, alone = model(dtype), model(dtype)
    made = build(whole.named_parameters(), train)
    late = whole[0].weight
    before = late.detach().clone()
    for step in range(3):
        give_gradients(whole, step)
        if step < 2:
            late.grad = None
        made.step()
        assert late.equal(before) == (step < 2)
    assert {p is late: int(state["step"]) for p, state in made.state.items()} == {True: 1, False: 3}
    only = build([("0.weight", alone[0].weight)], train)  # its first step, with the same gradient
    give_gradients(alone, 2)
    only.step()
    assert late.equal(alone[0].weight)


@pytest.mark.parametrize("widths", WIDTHS)
def test_scattered_memory_changes_nothing(widths: dict[str, Any]) -> None:
    train = Train(lr=0.02, **widths)
    plain = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    plain = plain.bfloat16() if train.precision == "bf16" else plain
    gradient = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)).to(plain.dtype)
    dense, scattered = nn.Parameter(plain.clone()), nn.Parameter(plain.T.contiguous().T)
    assert not scattered.is_contiguous()
    for parameter, grad in ((dense, gradient), (scattered, gradient.T.contiguous().T)):
        optimizer = build([("weight", parameter)], train)
        for _ in range(2):
            parameter.grad = grad
            optimizer.step()
    assert scattered.equal(dense)
    assert not dense.equal(plain)


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_a_state_that_is_loaded_keeps_its_width(optimizer: str, widths: dict[str, Any]) -> None:
    train = Train(optimizer=optimizer, lr=0.02, **widths)  # type: ignore[arg-type]
    ours = model(torch.bfloat16 if train.precision == "bf16" else torch.float32)
    made = build(ours.named_parameters(), train)
    trained(ours, made, steps=2)
    again = copy.deepcopy(ours)
    remade = build(again.named_parameters(), train)
    remade.load_state_dict(copy.deepcopy(made.state_dict()))
    for p, q in zip(ours.parameters(), again.parameters(), strict=True):
        assert made.state[p].keys() == remade.state[q].keys()
        for name, value in made.state[p].items():
            assert value.dtype == remade.state[q][name].dtype
            assert value.equal(remade.state[q][name])
    assert equal(trained(ours, made), trained(again, remade))


def test_follows_the_schedule() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = build([("weight", weight)], Train(lr=1.0, weight_decay=0.0))
    set_learning_rate(optimizer, 0.0)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert weight.equal(torch.ones(2, 2))
    set_learning_rate(optimizer, 0.5)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.5))  # Adam's first step: the sign of the gradient


def test_a_closure_computes_the_gradients() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = build([("weight", weight)], Train(lr=0.1))

    def closure() -> Tensor:
        loss = weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    step: Callable[[Callable[[], Tensor]], Tensor] = optimizer.step  # type: ignore[assignment]
    assert step(closure).item() == 3
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.9))
