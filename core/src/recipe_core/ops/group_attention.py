"""Self-attention within segments: the sequences that share a row, or a sequence without its padding."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from recipe_core.ops.dropout import keep_mask, keep_scale

_TILE = 1 << 18
"""Attention probabilities that a CPU computes at once: few enough to stay in its cache."""
Place = slice | Tensor
"""Positions of a segment's tokens in their row: a slice, or their indices where other tokens stand between them."""


class PackedSegments(NamedTuple):
    """Segments of each row: tokens attend to those with the same number."""

    ids: Tensor
    """Integers ``[batch, sequence]``, 0 for padding."""
    places: tuple[tuple[Place, ...], ...] | None
    """On CPUs, the positions of each row's segments, without padding; None elsewhere."""
    mask: Tensor | None
    """Off the CPU, True where two tokens are of one segment, ``[batch, 1, sequence, sequence]``."""


Groups = PackedSegments  # its name until API 2


def groups_of(ids: Tensor) -> PackedSegments:
    """The segments that ``ids`` number in each row from 1, computed once for all layers.

    A padding mask of ones and zeros is one segment per row. This does not synchronise with a device. On a CPU it reads
    the values, so that attention skips padding and pairs of tokens of different segments.
    """
    if ids.is_cpu and not torch.compiler.is_compiling():
        return PackedSegments(ids, tuple(_places(row) for row in ids.tolist()), None)
    return PackedSegments(ids, None, same_segment(ids))


def group_attention(q: Tensor, k: Tensor, v: Tensor, groups: PackedSegments, dropout: float) -> Tensor:
    """Attention of every token to all tokens of its segment, with dropout on the attention probabilities.

    Args:
        q, k, v: ``[batch, sequence, heads, head_dim]``.
        groups: from :func:`groups_of`.
        dropout: dropout probability; 0 outside training.

    Returns:
        ``[batch, sequence, heads, head_dim]``; undefined at padding.
    """
    if groups.places is not None and not torch.compiler.is_compiling():
        seed = int(torch.randint(2**63 - 1, ())) if dropout else 0
        with torch.autocast("cpu", enabled=False):
            output: Tensor = _GroupAttention.apply(  # type: ignore[no-untyped-call]
                q, k, v, groups.places, dropout, seed
            )
        return output
    # With a mask that needs no gradient, a GPU's fused kernels with dropout apply.
    mask = same_segment(groups.ids) if groups.mask is None else groups.mask
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2)


def _places(row: list[int]) -> tuple[Place, ...]:
    runs_of: dict[int, list[range]] = {}
    start = 0
    for number, run in groupby(row):
        stop = start + len(list(run))
        runs_of.setdefault(number, []).append(range(start, stop))
        start = stop
    runs_of.pop(0, None)
    return tuple(
        slice(runs[0].start, runs[0].stop) if len(runs) == 1 else torch.tensor([i for run in runs for i in run])
        for runs in runs_of.values()
    )


def same_segment(ids: Tensor) -> Tensor:
    """Return the mask ``[batch, 1, sequence, sequence]`` of pairs of tokens with the same number in ``ids``.

    Padding attends to padding: a row of the mask without any token would give NaN.
    """
    return ids[:, None, :, None] == ids[:, None, None, :]


class _GroupAttention(torch.autograd.Function):
    """Attention of a few heads of one segment at a time; backward recomputes probabilities and dropout masks.

    No ``sequence x sequence`` matrix is kept. Query, key and value are not copied; matrix products have their dtype,
    and softmax computes in fp32 internally.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, places: tuple[tuple[Place, ...], ...], dropout: float, seed: int
    ) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.places, ctx.dropout, ctx.seed = places, dropout, seed
        output = torch.zeros(q.shape, dtype=q.dtype)
        for tile, probabilities, mask in _tiles(q, k, places, dropout, seed):
            if mask is not None:
                probabilities.mul_(mask)
            output[tile] = _product(probabilities, v[tile].transpose(0, 1), keep_scale(dropout)).transpose(0, 1)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        kept, scale = keep_scale(ctx.dropout), q.shape[-1] ** -0.5
        grads = [torch.zeros(q.shape, dtype=q.dtype) for _ in range(3)]
        for tile, probabilities, mask in _tiles(q, k, ctx.places, ctx.dropout, ctx.seed):
            tile_q, tile_k, tile_v, tile_grad = (part[tile].transpose(0, 1) for part in (q, k, v, grad))
            dropped, grad_p = probabilities, _product(tile_grad, tile_v.mT, kept)
            if mask is not None:
                dropped = probabilities * mask
                grad_p.mul_(mask)
            grad_s = torch._softmax_backward_data(grad_p, probabilities, -1, probabilities.dtype)
            tile_grads = (
                _product(grad_s, tile_k, scale), _product(grad_s.mT, tile_q, scale),
                _product(dropped.mT, tile_grad, kept),
            )  # fmt: skip
            for whole, part in zip(grads, tile_grads, strict=True):
                whole[tile] = part.transpose(0, 1)
        return *grads, None, None, None


def _tiles(
    q: Tensor, k: Tensor, places: tuple[tuple[Place, ...], ...], dropout: float, seed: int
) -> Iterator[tuple[tuple[int, Place, slice], Tensor, Tensor | None]]:
    """Attention probabilities of each tile (row, tokens, heads).

    Yields:
        The tile, probabilities ``[heads, tokens, tokens]``, and the dropout mask of that shape, which ``seed``
        determines, or None without dropout.
    """
    generator = torch.Generator().manual_seed(seed)
    for row, groups in enumerate(places):
        for place in groups:
            tokens = place.stop - place.start if isinstance(place, slice) else len(place)
            at_once = max(1, _TILE // tokens**2)
            for first in range(0, q.shape[2], at_once):
                tile = row, place, slice(first, first + at_once)
                tile_q, tile_k = (part[tile].transpose(0, 1) for part in (q, k))
                probabilities = torch.softmax(_product(tile_q, tile_k.mT, q.shape[-1] ** -0.5), -1)
                mask = keep_mask(probabilities.shape, dropout, q.dtype, generator) if dropout else None
                yield tile, probabilities, mask


def _product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale)
