"""Answers of the native engine where other engines differ: copies, sums, random numbers, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recipe_core.engine.protocol import start
from recipe_core.hooks.train import Train
from recipe_core.testing import spawn

CPU = Train(device="cpu")


def averaged() -> tuple[list[float], bool, str]:
    """Gradients of two ranks, one of which has none."""
    with start(CPU) as engine:
        used, unused = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)), nn.Parameter(torch.zeros(1))
        used.grad = torch.tensor([1.0 + 2 * engine.rank, 4.0], dtype=torch.bfloat16)
        engine.average_gradients([used, unused])
        assert used.grad is not None
        return used.grad.tolist(), unused.grad is None, str(used.grad.dtype)


def test_gradients_are_averaged_in_their_own_type() -> None:
    assert spawn(averaged, 2) == [([2.0, 4.0], True, "torch.bfloat16")] * 2


def test_copies_are_tensors_of_their_own() -> None:
    with start(CPU) as engine:
        first, second = torch.arange(3.0), torch.ones(2)
        copies = engine.to_host([first, second])
        first.zero_()
        assert [copy.tolist() for copy in copies] == [[0.0, 1.0, 2.0], [1.0, 1.0]]
        assert engine.load_target(second) is second


def test_sums_and_stacks_are_as_wide_as_the_device_has_them() -> None:
    with start(CPU) as engine:
        assert engine.sum_counts([torch.tensor(2**40), torch.tensor(1)]).item() == 2**40 + 1
        stacked = engine.stack_on_host([torch.tensor(1.5, dtype=torch.bfloat16), torch.tensor(2**40)])
        assert (stacked.dtype, stacked.tolist()) == (torch.float64, [1.5, 2.0**40])


def test_random_numbers_of_a_fork_leave_no_trace() -> None:
    with start(CPU) as engine:
        engine.seed(1)
        expected = torch.rand(2)
        engine.seed(1)
        with engine.fork_rng(7):
            inside = torch.rand(2)
        assert torch.rand(2).equal(expected)
        with engine.fork_rng(7):
            assert torch.rand(2).equal(inside)
        assert not inside.equal(expected)


def test_a_forward_that_is_recomputed_runs_twice_with_the_same_numbers() -> None:
    calls: list[torch.Tensor] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        calls.append(torch.rand(2))
        return x * x

    with start(CPU) as engine:
        x = torch.ones(2, requires_grad=True)
        engine.recompute(forward)(x).sum().backward()
    assert len(calls) == 2
    assert calls[0].equal(calls[1])
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_the_compiler_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/kept")
    with start(CPU) as engine:
        assert (engine.traced, engine.compiler.name, engine.compiler.always) == (False, "torch.compile", False)
        assert engine.compiler.kept().startswith("kept in /kept (TORCHINDUCTOR_CACHE_DIR names another folder")
        assert engine.compile_options() == {}
