"""Attention within groups, against PyTorch's with a mask and against its own definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from recipe_core.ops import group_attention as kernel
from recipe_core.ops.dropout import keep_scale
from recipe_core.ops.group_attention import PackedSegments, group_attention, groups_of

SEQUENCE = 70
ROWS = {
    "whole": [1] * 70,
    "padded": [1] * 43 + [0] * 27,
    "shared": [1] * 20 + [2] * 31 + [3] * 9 + [0] * 10,
    "one token": [1] + [0] * 69,
    "padding between": [0] * 3 + [1] * 10 + [0] * 7 + [2] * 50,
    "scattered": [1, 2, 0, 2, 1] * 14,
}
IDS = torch.tensor(list(ROWS.values()))
REAL = (IDS != 0)[..., None, None]


def parts(dtype: torch.dtype = torch.float32, heads: int = 3, head_dim: int = 16) -> list[Tensor]:
    make = torch.Generator().manual_seed(2)
    shape = (len(ROWS), SEQUENCE, heads, head_dim)
    return [torch.randn(shape, generator=make).to(dtype).requires_grad_() for _ in range(3)]


def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = (IDS[:, None, :, None] == IDS[:, None, None, :]) & (IDS != 0)[:, None, None, :]
    mask = mask | torch.eye(SEQUENCE, dtype=torch.bool)  # padding must see something
    with sdpa_kernel(SDPBackend.MATH):
        found = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), attn_mask=mask)
    return found.transpose(1, 2)


def masked(ids: Tensor) -> PackedSegments:
    """As devices other than CPUs get them."""
    return PackedSegments(ids, None, kernel.same_segment(ids))


@pytest.mark.parametrize("tile", [1, 5000, 1 << 18])
@pytest.mark.parametrize("groups", [groups_of, masked])
def test_it_equals_attention_with_a_mask(groups: Any, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_TILE", tile)
    qkv = parts()
    weights = torch.randn(qkv[0].shape) * REAL
    got, wanted = group_attention(*qkv, groups(IDS), 0.0), reference(*qkv)
    torch.testing.assert_close(got * REAL, wanted * REAL, atol=1e-6, rtol=1e-5)
    gradients = [torch.autograd.grad((output * weights).sum(), qkv) for output in (got, wanted)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)


def test_places_are_slices_where_they_can_be() -> None:
    places = groups_of(IDS).places
    assert places is not None
    assert places[2] == (slice(0, 20), slice(20, 51), slice(51, 60))
    assert [len(row) for row in places] == [1, 1, 3, 1, 2, 2]
    assert [place.tolist()[:3] for place in places[5]] == [[0, 4, 5], [1, 3, 6]]


def test_bfloat16_is_about_as_good_as_whole_attention() -> None:
    qkv = parts(torch.bfloat16)
    exact = [part.detach().float().requires_grad_() for part in qkv]
    weights = torch.randn(qkv[0].shape) * REAL
    wanted = reference(*exact)
    expected = torch.autograd.grad((wanted * weights).sum(), exact)
    got = group_attention(*qkv, groups_of(IDS), 0.0)
    assert got.dtype == torch.bfloat16
    assert ((got - wanted) * REAL).norm() < 0.006 * (wanted * REAL).norm()  # one rounding to bfloat16 gives 0.002
    for ours, theirs in zip(torch.autograd.grad((got.float() * weights).sum(), qkv), expected, strict=True):
        assert ours.dtype == torch.bfloat16
        assert (ours - theirs).norm() < 0.01 * theirs.norm()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_derivatives_with_dropout(dropout: float) -> None:
    rows = torch.tensor([[1, 1, 1, 2, 2, 0], [1, 2, 1, 2, 2, 2]])
    make = torch.Generator().manual_seed(4)
    qkv = [torch.randn(2, 6, 2, 3, generator=make, dtype=torch.float64).requires_grad_() for _ in range(3)]
    places = groups_of(rows).places
    assert torch.autograd.gradcheck(lambda *x: kernel._GroupAttention.apply(*x, places, dropout, 11), qkv)


def test_dropout_is_that_of_the_probabilities() -> None:
    """With the identity as values, the output is the probabilities, dropped and scaled."""
    sequence, p = 256, 0.25
    q, k = torch.randn(2, 4, sequence, 1, sequence)
    v = torch.eye(sequence)[None, :, None].expand(4, -1, -1, -1)
    groups = groups_of(torch.ones(4, sequence, dtype=torch.int64))
    torch.manual_seed(0)
    dropped, plain = group_attention(q, k, v, groups, p), group_attention(q, k, v, groups, 0.0)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] * keep_scale(p), atol=1e-6, rtol=1e-4)
    share = kept.double().mean().item()
    assert share == pytest.approx(1 - p, abs=4 * (p * (1 - p) / kept.numel()) ** 0.5)
    torch.manual_seed(0)
    assert torch.equal(dropped, group_attention(q, k, v, groups, p))
    assert not torch.equal(dropped, group_attention(q, k, v, groups, p))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_nothing_grows_with_the_square_of_the_sequence(dropout: float) -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    qkv = parts()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        group_attention(*qkv, groups_of(IDS), dropout)
    assert max(kept) <= qkv[0].numel()
