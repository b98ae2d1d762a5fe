"""Dropout from sixteen random bits an element."""

from __future__ import annotations

import pytest
import torch

from recipe_core.ops.dropout import dropout, keep_mask, keep_scale

COUNT = 1 << 20


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mask = keep_mask((COUNT,), p, dtype)
    assert mask.dtype == dtype
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    deviation = (p * (1 - p) / COUNT) ** 0.5
    assert 1 - mask.double().mean().item() == pytest.approx(p, abs=4 * deviation + 2**-17)
    # The four elements of a draw, and neighbouring draws, are dropped independently of each other.
    centred = mask.double() - mask.double().mean()
    for distance in (1, 2, 3, 4, 8):
        correlation = (centred[:-distance] * centred[distance:]).mean().item() / (p * (1 - p))
        assert abs(correlation) < 5 * COUNT**-0.5
    lanes = mask.view(-1, 4).double().mean(0)
    assert ((lanes - (1 - p)).abs() < 5 * 2 * deviation).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 1e-6, 1 - 1e-9])
def test_the_scale_keeps_the_expectation_of_the_rounded_probability(p: float) -> None:
    levels = min(round(p * 65536), 65535)
    assert keep_scale(p) * (1 - levels / 65536) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_elements_are_scaled_and_so_are_their_gradients(dtype: torch.dtype) -> None:
    x = torch.randn(7, 33).to(dtype).requires_grad_()
    y = dropout(x, 0.25, training=True)
    y.sum().backward()
    kept = y != 0
    assert y.dtype == dtype
    assert 0 < kept.sum() < x.numel()
    assert torch.equal(y[kept], (x * keep_scale(0.25))[kept])
    assert torch.equal(x.grad, (kept * torch.tensor(keep_scale(0.25))).to(dtype))


def test_it_follows_the_seed() -> None:
    x = torch.ones(1001)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(dropout(x, 0.5, training=True))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_it_does_nothing_outside_training_or_without_probability() -> None:
    x = torch.ones(5)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
