"""Lists of tensors cut into chunks of bounded size: what a CPU's cache holds, or what a device may spend on copies."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

_CPU_CHUNK, _CHUNK = 1 << 18, 1 << 24
"""Values in a chunk: on a CPU, the copies in fp32 of all that a step touches stay in its cache; elsewhere, few enough
not to count in memory and enough to keep the device busy."""


class Piece(NamedTuple):
    """A part of one tensor of a list, seen as a matrix: whole rows, or a part of one."""

    tensor: int
    """Its place in the list."""
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


def matrix(tensor: Tensor) -> Tensor:
    """Contiguous ``tensor`` as ``[first dimension, all others]``; a vector or a number is one row."""
    rows = tensor.shape[0] if tensor.ndim > 1 else 1
    return tensor.view(rows, tensor.numel() // max(1, rows))


def chunks(matrices: Sequence[Tensor], *, whole: bool = False) -> list[list[Piece]]:
    """Pieces of all of ``matrices`` (of one device) in order, in lists of bounded size; ``whole``: in one list."""
    limit = _CPU_CHUNK if matrices[0].is_cpu else _CHUNK
    return _plan(tuple((m.shape[0], m.shape[1]) for m in matrices), sys.maxsize if whole else limit)


@lru_cache(maxsize=4096)
def _plan(shapes: tuple[tuple[int, int], ...], limit: int) -> list[list[Piece]]:
    groups: list[list[Piece]] = []
    left = 0
    for number, (rows, columns) in enumerate(shapes):
        for piece in _cut(number, rows, columns, limit):
            size = piece.shape[0] * piece.shape[1]
            if size > left:
                groups.append([])
                left = limit
            groups[-1].append(piece)
            left -= size
    return groups


def _cut(number: int, rows: int, columns: int, limit: int) -> Iterator[Piece]:
    """Whole rows, as many as fit; parts of rows where one alone does not. Nothing where there is nothing."""
    height, width = max(1, limit // max(1, columns)), max(1, min(columns, limit))
    for top in range(0, rows, height):
        for first in range(0, columns, width):
            yield Piece(number, slice(top, min(top + height, rows)), slice(first, min(first + width, columns)))


def views(matrices: Sequence[Tensor], chunk: Iterable[Piece]) -> list[Tensor]:
    """The pieces of ``chunk``, in the memory of ``matrices``."""
    tensors = []
    for piece in chunk:
        whole = matrices[piece.tensor]
        tensors.append(whole if whole.shape == piece.shape else whole[piece.rows, piece.columns])
    return tensors


class Scratch:
    """Memory that every chunk uses anew, by the name of what is kept there."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, like: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        """Uninitialised memory of ``dtype``: all of it as one vector, and cut into the shapes of ``like``."""
        size = sum(tensor.numel() for tensor in like)
        buffer = self._held.get(name)
        if buffer is None or buffer.numel() < size or buffer.dtype != dtype or buffer.device != like[0].device:
            buffer = self._held[name] = torch.empty(size, dtype=dtype, device=like[0].device)
        return buffer[:size], cut(buffer, like)


def cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The beginning of ``flat`` in the shapes of ``like``, one after the other."""
    ends = list(accumulate(tensor.numel() for tensor in like))
    return [flat[end - tensor.numel() : end].view(tensor.shape) for end, tensor in zip(ends, like, strict=True)]
