"""Documents of a row in FlexAttention: squares of attention scores without a pair of one document are never computed.

The score of a query and a key counts if both are of one document, the key is not later, and it is within the window.
Since documents follow one another, a query sees all keys from a first one to itself, and that first one never falls
from one query to the next. So the first and the last query of a square of 128 x 128 scores say whether some, all or
none of its pairs count, without a matrix of all pairs and without a synchronisation with the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIDE = 128
"""Queries, and keys, of a square: what FlexAttention's kernels take at once."""


class DocumentBlocks(NamedTuple):
    """The squares of scores that hold pairs of tokens which see each other."""

    first: Tensor
    """First token that each token sees, int32 ``[batch, sequence]``."""
    tables: tuple[Tensor, ...]
    """Squares with some and with all pairs, by rows of queries and then by columns of keys, as ``BlockMask`` of
    FlexAttention lists them."""


def document_blocks(first: Tensor) -> DocumentBlocks:
    """Return the squares for ``first``, integers ``[batch, sequence]``: the first token that each token sees, which
    never falls from one token to the next."""
    length = first.shape[1]
    starts = torch.arange(0, length, SIDE, device=first.device)
    ends = (starts + SIDE - 1).clamp(max=length - 1)
    lowest, highest = (first.index_select(1, places).unsqueeze(-1) for places in (starts, ends))
    queries, keys = starts.unsqueeze(-1), starts
    seen = (keys <= queries) & (keys + SIDE > lowest)
    # A square that the row does not fill has no pairs beyond its end.
    whole = (keys < queries) & (keys >= highest) & (queries + SIDE <= length)
    some = seen & ~whole
    tables = [table for squares in (some, whole, some.mT, whole.mT) for table in _table(squares)]
    return DocumentBlocks(first.int(), tuple(tables))


def block_attention(q: Tensor, k: Tensor, v: Tensor, blocks: DocumentBlocks) -> Tensor:
    """Attention of each token to those that it sees.

    Args:
        q: ``[batch, sequence, heads, head_dim]``.
        k, v: ``[batch, sequence, kv_heads, head_dim]``; ``kv_heads`` divides ``heads``.
        blocks: from :func:`document_blocks`.

    Returns:
        ``[batch, sequence, heads, head_dim]``.
    """
    product = _product if torch.compiler.is_compiling() else _compiled()
    return product(q, k, v, blocks)


def _product(q: Tensor, k: Tensor, v: Tensor, blocks: DocumentBlocks) -> Tensor:
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    def sees(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= blocks.first[batch, query])

    length = q.shape[1]
    made: Any = BlockMask  # its type has a name for each of the tables
    mask = made((length, length), *blocks.tables, BLOCK_SIZE=(SIDE, SIDE), mask_mod=sees)
    # Under autocast, rotations and norms may have left queries and keys in fp32.
    q, k, v = (part.to(v.dtype).transpose(1, 2) for part in (q, k, v))
    output = flex_attention(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    assert isinstance(output, Tensor)
    return output.transpose(1, 2)


@cache
def _compiled() -> Callable[..., Tensor]:
    # Not compiled, FlexAttention computes all scores and masks them.
    return torch.compile(_product)


def _table(squares: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of ``squares``, bool ``[batch, rows, columns]``, the number of True, and the columns, True first."""
    columns = squares.int().argsort(dim=-1, descending=True, stable=True)
    return squares.sum(-1, dtype=torch.int32).unsqueeze(1), columns.int().unsqueeze(1)
