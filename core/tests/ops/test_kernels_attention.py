"""Attention in blocks on a CPU, against PyTorch's and against its own definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from recipe_core.ops import attention
from recipe_core.ops.attention import _BlockAttention, causal_attention
from recipe_core.ops.dropout import keep_scale


def qkv_of(sequence: int = 300, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(2, sequence, 3, 3, 16, generator=torch.Generator().manual_seed(2))
    return made.to(dtype).requires_grad_()


def reference(qkv: Tensor) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


@pytest.mark.parametrize("sequence", [1, 128, 300])
def test_blocks_equal_whole_attention(sequence: int) -> None:
    qkv = qkv_of(sequence)
    weights = torch.randn(2, sequence, 3, 16)
    got, wanted = _BlockAttention.apply(*qkv.unbind(3), 0.0, 0), reference(qkv)
    torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)
    gradients = [torch.autograd.grad((output * weights).sum(), qkv)[0] for output in (got, wanted)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-5)


def test_bfloat16_is_about_as_good_as_whole_attention() -> None:
    qkv = qkv_of(dtype=torch.bfloat16)
    exact = qkv.detach().float().requires_grad_()
    weights = torch.randn(2, 300, 3, 16)
    wanted = reference(exact)
    expected = torch.autograd.grad((wanted * weights).sum(), exact)[0]
    got = causal_attention(qkv, 0.0)
    gradient = torch.autograd.grad((got.float() * weights).sum(), qkv)[0]
    assert got.dtype == gradient.dtype == torch.bfloat16
    assert (got - wanted).norm() < 0.006 * wanted.norm()  # one rounding to bfloat16 gives 0.002
    assert (gradient - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_derivatives_with_dropout(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_ROWS", 3)
    monkeypatch.setattr(torch, "float32", torch.float64)  # the sums over blocks, which fp32 would round
    qkv = qkv_of(7, torch.float64)[:1, :, :2, :, :4].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: _BlockAttention.apply(*x.unbind(3), dropout, 11), (qkv,))


def test_dropout_is_that_of_the_probabilities() -> None:
    """With the identity as values, the output is the probabilities, dropped and scaled."""
    sequence, p = 256, 0.25
    qkv = torch.randn(4, sequence, 1, 3, sequence)
    qkv[:, :, 0, 2] = torch.eye(sequence)
    torch.manual_seed(0)
    dropped, plain = causal_attention(qkv, p).squeeze(2), causal_attention(qkv, 0.0).squeeze(2)
    seen = plain > 0
    kept = dropped > 0
    assert not kept[~seen].any()
    torch.testing.assert_close(dropped[kept], plain[kept] * keep_scale(p), atol=1e-6, rtol=1e-4)
    share = kept.sum().item() / seen.sum().item()
    assert share == pytest.approx(1 - p, abs=4 * (p * (1 - p) / seen.sum().item()) ** 0.5)
    torch.manual_seed(0)
    assert torch.equal(dropped, causal_attention(qkv, p).squeeze(2))
    assert not torch.equal(dropped, causal_attention(qkv, p).squeeze(2))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_grows_with_the_square_of_the_sequence(dropout: float, dtype: torch.dtype) -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    qkv = qkv_of(dtype=dtype)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        causal_attention(qkv, dropout)
    assert max(kept) <= qkv.numel()
