"""Self-attention within groups of tokens: the sequences that share a row, or a sequence without its padding."""

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
"""Probabilities that the CPU holds at once: few enough to stay in its cache."""
Place = slice | Tensor
"""The tokens of a group in their row: a slice, or their indices where other tokens stand between them."""


class Groups(NamedTuple):
    """Which tokens see each other: those of a row that have the same number."""

    ids: Tensor
    """Integers ``[batch, sequence]``, 0 for padding."""
    places: tuple[tuple[Place, ...], ...] | None
    """On CPUs, the places of each row's groups but padding."""
    mask: Tensor | None
    """Elsewhere, True where two tokens see each other, ``[batch, 1, sequence, sequence]``."""


def groups_of(ids: Tensor) -> Groups:
    """The groups that ``ids`` number in each row from 1, made once for all layers.

    A padding mask of ones and zeros will do. Nothing waits for a device here; on the CPU the values are looked at, so
    that what is padding, and what tokens of different groups have to do with each other, is not computed.
    """
    if ids.is_cpu and not torch.compiler.is_compiling():
        return Groups(ids, tuple(_places(row) for row in ids.tolist()), None)
    return Groups(ids, None, _mask(ids))


def group_attention(q: Tensor, k: Tensor, v: Tensor, groups: Groups, dropout: float) -> Tensor:
    """Attention of every token to all tokens of its group, with ``dropout`` on the probabilities.

    Args:
        q, k, v: ``[batch, sequence, heads, head_dim]``.
        groups: from :func:`groups_of`.
        dropout: its probability; 0 outside training.

    Returns:
        ``[batch, sequence, heads, head_dim]``; where padding is, nothing of meaning.
    """
    if groups.places is not None and not torch.compiler.is_compiling():
        seed = int(torch.randint(2**63 - 1, ())) if dropout else 0
        with torch.autocast("cpu", enabled=False):
            output: Tensor = _GroupAttention.apply(  # type: ignore[no-untyped-call]
                q, k, v, groups.places, dropout, seed
            )
        return output
    # With a mask, a GPU's kernels with dropout are open to it as long as that mask needs no gradient.
    mask = _mask(groups.ids) if groups.mask is None else groups.mask
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2)


def _places(row: list[int]) -> tuple[Place, ...]:
    found: dict[int, list[range]] = {}
    start = 0
    for number, run in groupby(row):
        stop = start + len(list(run))
        found.setdefault(number, []).append(range(start, stop))
        start = stop
    found.pop(0, None)
    return tuple(
        slice(runs[0].start, runs[0].stop) if len(runs) == 1 else torch.tensor([i for run in runs for i in run])
        for runs in found.values()
    )


def _mask(ids: Tensor) -> Tensor:
    """Padding sees padding here, since a row of the mask without any token would give no numbers."""
    return ids[:, None, :, None] == ids[:, None, None, :]


class _GroupAttention(torch.autograd.Function):
    """Attention of a few heads of one group at a time; backward computes probabilities and dropout masks again.

    So nothing of size ``sequence x sequence`` is kept. Query, key and value stay where the linear layers wrote them;
    the products are of their width, and softmax computes in fp32 inside.
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
            found = (
                _product(grad_s, tile_k, scale), _product(grad_s.mT, tile_q, scale),
                _product(dropped.mT, tile_grad, kept),
            )  # fmt: skip
            for whole, part in zip(grads, found, strict=True):
                whole[tile] = part.transpose(0, 1)
        return *grads, None, None, None


def _tiles(
    q: Tensor, k: Tensor, places: tuple[tuple[Place, ...], ...], dropout: float, seed: int
) -> Iterator[tuple[tuple[int, Place, slice], Tensor, Tensor | None]]:
    """Each tile (row, tokens, heads), with what its tokens attend with.

    Yields:
        The tile, probabilities ``[heads, tokens, tokens]``, and the dropout mask of that shape, the same for the same
        ``seed``, or None without dropout.
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
    """``scale * a @ b``, batched."""
    return torch.baddbmm(a.new_empty(1, 1, 1), a, b, beta=0, alpha=scale)
