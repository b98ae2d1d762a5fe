"""Slices of lists of tensors, in chunks that fit a CPU's cache, or a device's budget for copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from torch import Tensor

_CPU_CHUNK, _CHUNK = 1 << 18, 1 << 24
"""Elements of a chunk: on a CPU, the fp32 copies of all that a step touches stay in its cache; elsewhere, few enough to
be negligible in memory and enough to keep the device busy."""


class Slice(NamedTuple):
    """A slice of one matrix of a list: whole rows, or a part of one row."""

    tensor: int
    """Index of the matrix in the list."""
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


def chunks(matrices: Sequence[Tensor]) -> list[list[Slice]]:
    """Slices that cover ``matrices`` (of one device) in order, in lists of bounded size."""
    return _plan(tuple((m.shape[0], m.shape[1]) for m in matrices), _CPU_CHUNK if matrices[0].is_cpu else _CHUNK)


@lru_cache(maxsize=4096)
def _plan(shapes: tuple[tuple[int, int], ...], limit: int) -> list[list[Slice]]:
    groups: list[list[Slice]] = []
    left = 0
    for number, (rows, columns) in enumerate(shapes):
        for part in _slices(number, rows, columns, limit):
            size = part.shape[0] * part.shape[1]
            if size > left:
                groups.append([])
                left = limit
            groups[-1].append(part)
            left -= size
    return groups


def _slices(number: int, rows: int, columns: int, limit: int) -> Iterator[Slice]:
    height, width = max(1, limit // max(1, columns)), max(1, min(columns, limit))
    for top in range(0, rows, height):
        for first in range(0, columns, width):
            yield Slice(number, slice(top, min(top + height, rows)), slice(first, min(first + width, columns)))


def views(matrices: Sequence[Tensor], chunk: Iterable[Slice]) -> list[Tensor]:
    """Views of ``matrices`` at the slices of ``chunk``."""
    tensors = []
    for part in chunk:
        whole = matrices[part.tensor]
        tensors.append(whole if whole.shape == part.shape else whole[part.rows, part.columns])
    return tensors


def unflatten_like(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Consecutive views of ``flat``, from its start, with the shapes of ``like``."""
    ends = list(accumulate(tensor.numel() for tensor in like))
    return [flat[end - tensor.numel() : end].view(tensor.shape) for end, tensor in zip(ends, like, strict=True)]
