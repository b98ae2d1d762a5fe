"""Causal self-attention, and attention of new tokens to those before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from recipe_core.ops.dropout import keep_mask, keep_scale

_ROWS = 128
"""Queries whose scores the CPU holds at once: few enough to stay in its cache, many enough for fast products."""


def causal_attention(qkv: Tensor, dropout: float) -> Tensor:
    """Causal self-attention, with dropout on the attention probabilities.

    Args:
        qkv: query, key and value of each head, ``[batch, sequence, heads, 3, head_dim]``.
        dropout: dropout probability; 0 outside training.

    Returns:
        ``[batch, sequence, heads, head_dim]``.
    """
    q, k, v = qkv.unbind(3)
    return causal_product(q, k, v, dropout)


def causal_product(q: Tensor, k: Tensor, v: Tensor, dropout: float, window: int | None = None) -> Tensor:
    """:func:`causal_attention` of separate tensors, ``[batch, sequence, heads, head_dim]`` each.

    ``k`` and ``v`` may have fewer heads; for these and ``window`` see :func:`grouped_query_attention`.
    """
    if window is None and k.shape == q.shape and _better_in_blocks(q, dropout):
        seed = int(torch.randint(2**63 - 1, ())) if dropout else 0
        with torch.autocast("cpu", enabled=False):
            output: Tensor = _BlockAttention.apply(q, k, v, dropout, seed)  # type: ignore[no-untyped-call]
        return output
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return grouped_query_attention(q, k, v, window, dropout).transpose(1, 2)


def grouped_query_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None = None, dropout: float = 0.0) -> Tensor:
    """Causal attention whose queries are at the last positions of the keys, in groups of heads that share keys.

    Args:
        q: ``[batch, heads, queries, head_dim]``.
        k, v: ``[batch, kv_heads, keys, head_dim]``; ``kv_heads`` divides ``heads``, ``keys`` is at least ``queries``.
        window: last positions that a query attends to, its own included; None: all.
        dropout: dropout probability; 0 outside training.

    Returns:
        ``[batch, heads, queries, head_dim]``.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    reach = keys if window is None else window + queries - 1
    if reach < keys:  # the first keys are out of every query's window
        k, v, keys = k[..., -reach:, :], v[..., -reach:, :], reach
    mask = None
    if queries > 1 and (queries < keys or (window is not None and window < keys)):
        places = torch.arange(keys, device=q.device)
        distance = places[-queries:, None] - places
        mask = (distance >= 0) & (distance < (window or keys))
    causal = mask is None and queries > 1
    grouped = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal, enable_gqa=grouped)


def _better_in_blocks(q: Tensor, dropout: float) -> bool:
    # On CPUs PyTorch has no kernel with dropout (it falls back to whole score matrices in fp32, with a slow generator),
    # and its bf16 kernel takes twice the time of plain matrix products.
    on_cpu = q.is_cpu and not torch.compiler.is_compiling()
    return on_cpu and (dropout > 0 or q.dtype == torch.bfloat16)


class _BlockAttention(torch.autograd.Function):
    """Attention in blocks of queries; backward recomputes each block's probabilities and dropout mask.

    No ``sequence x sequence`` matrix is kept, and keys after a block are not read. Matrix products have the dtype of
    the inputs, as in Megatron-LM's unfused attention; softmax computes in fp32 internally.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float, seed: int) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.dropout, ctx.seed = dropout, seed
        batch, sequence, heads, head_dim = q.shape
        q, k, v = _heads_first(q, k, v)
        output = torch.empty_like(q)
        for start, stop, probabilities, mask in _blocks(q, k, dropout, seed):
            if mask is not None:
                probabilities.mul_(mask)
            output[:, start:stop] = torch.bmm(probabilities, v[:, :stop])
        if dropout:
            output.mul_(keep_scale(dropout))
        return output.view(batch, heads, sequence, head_dim).transpose(1, 2).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing recomputes them
        batch, sequence, heads, head_dim = saved[0].shape
        q, k, v = _heads_first(*saved)
        grad = grad.transpose(1, 2).reshape(q.shape) * keep_scale(ctx.dropout)
        grad_q = torch.empty_like(q)
        grad_k, grad_v = (torch.zeros(q.shape, dtype=torch.float32) for _ in range(2))  # sums over blocks
        for start, stop, probabilities, mask in _blocks(q, k, ctx.dropout, ctx.seed):
            dropped, grad_p = probabilities, torch.bmm(grad[:, start:stop], v[:, :stop].mT)
            if mask is not None:
                dropped = probabilities * mask
                grad_p.mul_(mask)
            grad_v[:, :stop] += torch.bmm(dropped.mT, grad[:, start:stop])
            grad_s = torch._softmax_backward_data(grad_p, probabilities, -1, probabilities.dtype)
            grad_q[:, start:stop] = torch.bmm(grad_s, k[:, :stop])
            grad_k[:, :stop] += torch.bmm(grad_s.mT, q[:, start:stop])
        scale = head_dim**-0.5
        grads = grad_q.mul_(scale), grad_k.mul_(scale).to(q.dtype), grad_v.to(q.dtype)
        return *(part.view(batch, heads, sequence, head_dim).transpose(1, 2) for part in grads), None, None


def _heads_first(*parts: Tensor) -> tuple[Tensor, ...]:
    # [batch * heads, sequence, head_dim] each, contiguous for torch.bmm
    return tuple(part.transpose(1, 2).flatten(0, 1).contiguous() for part in parts)


def _blocks(q: Tensor, k: Tensor, dropout: float, seed: int) -> Iterator[tuple[int, int, Tensor, Tensor | None]]:
    """Attention probabilities of each block of queries.

    Yields:
        start, stop, probabilities ``[batch * heads, stop - start, stop]``, and the dropout mask of that shape, which
        ``seed`` determines, or None without dropout.
    """
    sequence, head_dim = q.shape[1:]
    future = torch.full((_ROWS, _ROWS), -math.inf, dtype=q.dtype).triu_(1)
    unused = q.new_empty(1, 1, 1)
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, sequence, _ROWS):
        stop = min(start + _ROWS, sequence)
        scores = torch.baddbmm(unused, q[:, start:stop], k[:, :stop].mT, beta=0, alpha=head_dim**-0.5)
        scores[:, :, start:].add_(future[: stop - start, : stop - start])
        mask = keep_mask(scores.shape, dropout, q.dtype, generator) if dropout else None
        yield start, stop, torch.softmax(scores, -1), mask
