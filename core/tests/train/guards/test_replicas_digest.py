"""The hash by which copies are compared: of all bytes, whatever type and place they have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from recipe_core.engine.digest import digest


def values(size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)


SIZES = [1, 2, 3, 7, 8, 1000, (1 << 18) - 1, 1 << 18, (1 << 18) + 1, (1 << 20) + 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.bool])
@pytest.mark.parametrize("size", SIZES)
def test_every_bit_counts(size: int, dtype: torch.dtype) -> None:
    whole = values(size, dtype)
    expected = digest(whole)
    assert digest(whole.clone()).equal(expected)
    for place in {0, size // 2, size - 1}:
        data = whole.clone().view(torch.uint8)
        for bit in (1, 128):
            data[place * whole.element_size()] ^= bit
            assert not digest(data.view(dtype) if dtype != torch.bool else data).equal(expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t[[1, 0, *range(2, len(t))]],
        lambda t: t.roll(1),
        lambda t: t.flip(0),
        lambda t: torch.cat([t[:2].neg(), t[2:]]),
        lambda t: torch.cat([t[: 1 << 18].roll(1), t[1 << 18 :]]),
        lambda t: torch.cat([t[1 << 18 : 2 << 18], t[: 1 << 18], t[2 << 18 :]]),
    ],
    ids=["two exchanged", "moved by one", "reversed", "two signs", "a row moved", "two rows exchanged"],
)
def test_changes_that_a_plain_sum_would_miss(change: Callable[[Tensor], Tensor]) -> None:
    whole = values((1 << 20) + 3)
    assert not digest(change(whole)).equal(digest(whole))


def test_signs_of_zero_and_kinds_of_nan_count() -> None:
    """Pairs of them too, which a sum of products alone would cancel."""
    zeros = torch.zeros(6)
    signed = zeros.clone()
    signed[[1, 3]] = -0.0
    nan = torch.full((4,), torch.nan)
    other = (nan.view(torch.int32) ^ 1).view(torch.float32)
    assert not digest(zeros).equal(digest(signed))
    assert not digest(nan).equal(digest(other))
    assert digest(nan).equal(digest(nan.clone()))


def test_where_values_lie_does_not_count() -> None:
    """A view that begins anywhere, or lies scattered."""
    whole = values(4099, torch.bfloat16)
    for start in range(1, 9):
        assert digest(whole[start:]).equal(digest(whole[start:].clone()))
    square = values(64 * 64).view(64, 64)
    assert digest(square.T).equal(digest(square.T.contiguous()))
    assert digest(torch.tensor(3.0)).equal(digest(torch.tensor([3.0])))
    assert digest(torch.zeros(0)).shape == ()


def test_drifts_of_one_bit_have_different_hashes() -> None:
    """Two thousand drifts of one bit, no two of one hash."""
    base = values(64)
    found = set()
    for place in range(64):
        for bit in range(32):
            changed = base.clone()
            changed.view(torch.int32)[place] ^= -(1 << 31) if bit == 31 else 1 << bit
            found.add(int(digest(changed)))
    assert len(found) == 64 * 32
