"""Dropout, sum and norm in one against the three."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recipe_core.ops import norm as kernel
from recipe_core.ops.dropout import keep_mask, keep_scale
from recipe_core.ops.norm import add_norm

WIDTH = 48


def inputs(x_type: torch.dtype, type_: torch.dtype) -> tuple[Tensor, Tensor, nn.LayerNorm]:
    make = torch.Generator().manual_seed(3)
    x, residual = (torch.randn(5, 31, WIDTH, generator=make) for _ in range(2))
    norm = nn.LayerNorm(WIDTH, eps=1e-12)
    for p in norm.parameters():
        nn.init.normal_(p, 1, 0.3, generator=make)
    return x.to(x_type).requires_grad_(), residual.to(type_).requires_grad_(), norm


@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("training", [True, False])
def test_it_equals_the_three(p: float, training: bool) -> None:
    x, residual, norm = inputs(torch.float32, torch.float32)
    weights = torch.randn(x.shape)
    torch.manual_seed(8)
    got = add_norm(x, residual, norm, p, training)
    torch.manual_seed(8)
    dropped = x * keep_mask(x.shape, p, x.dtype) * keep_scale(p) if training and p else x
    wanted = norm(dropped + residual)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)
    of = [x, residual, norm.weight, norm.bias]
    found, expected = (torch.autograd.grad((output * weights).sum(), of) for output in (got, wanted))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_derivatives(p: float) -> None:
    x, residual, norm = (part.double() for part in inputs(torch.float64, torch.float64))
    x, residual = (part[:2, :3].detach().requires_grad_() for part in (x, residual))

    def compute(*of: Tensor) -> Tensor:
        torch.manual_seed(5)
        output: Tensor = kernel._AddNorm.apply(*of, norm.eps, p)
        return output

    assert torch.autograd.gradcheck(compute, (x, residual, norm.weight, norm.bias))


@pytest.mark.parametrize(("x_type", "type_"), [(torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)])
def test_narrow_inputs_have_the_types_of_autocast(x_type: torch.dtype, type_: torch.dtype) -> None:
    x, residual, norm = inputs(x_type, type_)
    with torch.autocast("cpu", torch.bfloat16):
        got, wanted = add_norm(x, residual, norm, 0.0, True), norm(x + residual)
    assert got.dtype == wanted.dtype == type_
    torch.testing.assert_close(got, wanted)
    gradients = torch.autograd.grad(got.float().sum(), [x, residual, norm.weight, norm.bias])
    assert [g.dtype for g in gradients] == [x_type, type_, torch.float32, torch.float32]
