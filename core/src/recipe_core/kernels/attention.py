"""Self-attention: causal, or within groups of tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from recipe_core.kernels.dropout import keep_mask, keep_scale

_ROWS = 128
"""Queries whose scores the CPU holds at once: few enough to stay in its cache, many enough for fast products."""


Block = tuple[int, int, int, Tensor, Tensor | None]
"""Queries ``start`` to ``stop - 1``, the number of keys that they see, their probabilities ``[batch * heads, queries,
keys]``, and the dropout mask of that shape or None."""


class Groups(NamedTuple):
    """Which tokens see each other: those of a row with the same number."""

    ids: Tensor
    """Integers ``[batch, sequence]``."""
    mask: Tensor | None
    """True where two tokens see each other, ``[batch, 1, sequence, sequence]``; None where :func:`group_attention`
    compares the numbers itself."""


def groups_of(ids: Tensor) -> Groups:
    """Groups by number, made once for all layers.

    A padding mask will do, and so do the numbers of the sequences that share a row: padding, whose number is 0, then
    sees itself alone, so that no token sees nothing.
    """
    if ids.device.type == "cpu" and not torch.compiler.is_compiling():
        return Groups(ids, None)
    return Groups(ids, ids[:, None, :, None] == ids[:, None, None, :])


def group_attention(q: Tensor, k: Tensor, v: Tensor, groups: Groups, dropout: float) -> Tensor:
    """Attention of every token to all tokens of its group, with ``dropout`` on the probabilities.

    Args:
        q, k, v: ``[batch, sequence, heads, head_dim]``.
        groups: from :func:`groups_of`.
        dropout: its probability; 0 outside training.

    Returns:
        ``[batch, sequence, heads, head_dim]``.
    """
    if groups.mask is None:
        seed = int(torch.randint(2**63 - 1, ())) if dropout else 0
        with torch.autocast("cpu", enabled=False):
            output: Tensor = _GroupAttention.apply(q, k, v, groups.ids, dropout, seed)  # type: ignore[no-untyped-call]
        return output
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=groups.mask, dropout_p=dropout).transpose(1, 2)


def causal_attention(qkv: Tensor, dropout: float) -> Tensor:
    """Attention of every token to itself and those before it, with ``dropout`` on the probabilities.

    Args:
        qkv: query, key and value of each head, ``[batch, sequence, heads, 3, head_dim]``.
        dropout: its probability; 0 outside training.

    Returns:
        ``[batch, sequence, heads, head_dim]``.
    """
    if _better_in_blocks(qkv, dropout):
        seed = int(torch.randint(2**63 - 1, ())) if dropout else 0
        with torch.autocast("cpu", enabled=False):
            output: Tensor = _BlockAttention.apply(qkv, dropout, seed)  # type: ignore[no-untyped-call]
        return output
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True).transpose(1, 2)


def _better_in_blocks(qkv: Tensor, dropout: float) -> bool:
    """Whether the function below is faster than PyTorch's.

    On CPUs PyTorch has no kernel with dropout (it falls back to whole score matrices in fp32, with a slow generator),
    and its kernel for 16-bit numbers takes twice the time of plain products.
    """
    on_cpu = qkv.device.type == "cpu" and not torch.compiler.is_compiling()
    return on_cpu and (dropout > 0 or qkv.dtype == torch.bfloat16)


class _BlockAttention(torch.autograd.Function):
    """Attention in blocks of queries; backward computes each block's probabilities and dropout mask again.

    Nothing of size ``sequence x sequence`` is kept, and the keys after a block are not touched. The products are of the
    inputs' width, as in Megatron-LM's unfused attention; softmax computes in fp32 inside.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, dropout: float, seed: int) -> Tensor:
        ctx.save_for_backward(qkv)
        ctx.dropout, ctx.seed = dropout, seed
        q, k, v = _heads_first(qkv)
        output = _forward(q, v, _blocks(q, k, dropout, seed), dropout)
        return _heads_last(output, qkv.shape[0])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (qkv,) = ctx.saved_tensors
        batch, sequence, heads, _, head_dim = qkv.shape
        q, k, v = _heads_first(qkv)
        blocks = _blocks(q, k, ctx.dropout, ctx.seed)
        grads = torch.stack(_backward(grad.transpose(1, 2).reshape(q.shape), q, k, v, blocks, ctx.dropout))
        return grads.view(3, batch, heads, sequence, head_dim).permute(1, 3, 2, 0, 4), None, None


class _GroupAttention(torch.autograd.Function):
    """The same for attention within groups."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ids: Tensor, dropout: float, seed: int) -> Tensor:
        ctx.save_for_backward(q, k, v, ids)
        ctx.dropout, ctx.seed = dropout, seed
        batch = q.shape[0]
        q, k, v = (_heads_first(part[..., None, :])[0] for part in (q, k, v))
        output = _forward(q, v, _group_blocks(q, k, ids, dropout, seed), dropout)
        return _heads_last(output, batch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *qkv, ids = ctx.saved_tensors
        q, k, v = (_heads_first(part[..., None, :])[0] for part in qkv)
        blocks = _group_blocks(q, k, ids, ctx.dropout, ctx.seed)
        grads = _backward(grad.transpose(1, 2).reshape(q.shape), q, k, v, blocks, ctx.dropout)
        return *(_heads_last(part, ids.shape[0]) for part in grads), None, None, None


def _forward(q: Tensor, v: Tensor, blocks: Iterator[Block], dropout: float) -> Tensor:
    """The output ``[batch * heads, sequence, head_dim]``, as ``q`` and ``v`` are."""
    output = torch.empty_like(q)
    for start, stop, seen, probabilities, mask in blocks:
        if mask is not None:
            probabilities.mul_(mask)
        output[:, start:stop] = torch.bmm(probabilities, v[:, :seen])
    return output.mul_(keep_scale(dropout)) if dropout else output


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, blocks: Iterator[Block], dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ``q``, ``k`` and ``v``, all of the shape ``[batch * heads, sequence, head_dim]``."""
    grad = grad * keep_scale(dropout)
    grad_q = torch.empty_like(q)
    grad_k, grad_v = (torch.zeros(q.shape, dtype=torch.float32) for _ in range(2))  # sums over blocks
    for start, stop, seen, probabilities, mask in blocks:
        dropped, grad_p = probabilities, torch.bmm(grad[:, start:stop], v[:, :seen].mT)
        if mask is not None:
            dropped = probabilities * mask
            grad_p.mul_(mask)
        grad_v[:, :seen] += torch.bmm(dropped.mT, grad[:, start:stop])
        grad_s = torch._softmax_backward_data(grad_p, probabilities, -1, probabilities.dtype)
        grad_q[:, start:stop] = torch.bmm(grad_s, k[:, :seen])
        grad_k[:, :seen] += torch.bmm(grad_s.mT, q[:, start:stop])
    scale = q.shape[-1] ** -0.5
    return grad_q.mul_(scale), grad_k.mul_(scale).to(q.dtype), grad_v.to(q.dtype)


def _heads_first(qkv: Tensor) -> Tensor:
    """``[3, batch * heads, sequence, head_dim]``, each part contiguous, as batched products want it."""
    return qkv.permute(3, 0, 2, 1, 4).flatten(1, 2).contiguous()


def _heads_last(output: Tensor, batch: int) -> Tensor:
    """``[batch * heads, sequence, head_dim]`` to ``[batch, sequence, heads, head_dim]``, contiguous."""
    split: Tensor = output.unflatten(0, (batch, -1))
    return split.transpose(1, 2).contiguous()


def _blocks(q: Tensor, k: Tensor, dropout: float, seed: int) -> Iterator[Block]:
    """Blocks of causal attention; the dropout masks are the same for the same ``seed``."""
    sequence = q.shape[1]
    later = torch.full((_ROWS, _ROWS), -math.inf, dtype=q.dtype).triu_(1)
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, sequence, _ROWS):
        stop = min(start + _ROWS, sequence)
        scores = _scores(q[:, start:stop], k[:, :stop])
        scores[:, :, start:].add_(later[: stop - start, : stop - start])
        mask = keep_mask(scores.shape, dropout, q.dtype, generator) if dropout else None
        yield start, stop, stop, torch.softmax(scores, -1), mask


def _group_blocks(q: Tensor, k: Tensor, ids: Tensor, dropout: float, seed: int) -> Iterator[Block]:
    """Blocks of attention within the groups ``ids``."""
    batch, sequence = ids.shape
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, sequence, _ROWS):
        stop = min(start + _ROWS, sequence)
        scores = _scores(q[:, start:stop], k)
        strange = ids[:, None, start:stop, None] != ids[:, None, None, :]
        scores.unflatten(0, (batch, -1)).masked_fill_(strange, -math.inf)
        mask = keep_mask(scores.shape, dropout, q.dtype, generator) if dropout else None
        yield start, stop, sequence, torch.softmax(scores, -1), mask


def _scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products of queries and keys, ``[batch * heads, queries, keys]``."""
    unused = q.new_empty(1, 1, 1)
    return torch.baddbmm(unused, q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5)
