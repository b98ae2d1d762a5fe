"""The rows of some shards in an endless order that depends on a seed alone, read many at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp import shards
from recipe_bert_dp.limits import check
from recipe_bert_dp.shards import Arrays, Shape

SLICE = shards.CHUNK
"""Rows that are read at once, at least."""
MOST_IN_SLICE = 4096
"""And at most: longer chunks are read more than once, so that the memory stays bounded."""
WINDOW = 2048
"""Rows that are mixed with each other, at least."""
MOST_OPEN = 64
"""Shards that are open at a time."""


class Window(NamedTuple):
    """Rows that were mixed with each other: those from ``first`` to below ``end`` of the order."""

    first: int
    end: int
    rows: Arrays


class Stream:
    """The rows of some shards, epoch after epoch; in each, every row comes once.

    The rows of a shard are cut into slices, each of them whole chunks of the file, so that reading never goes row by
    row. In an epoch the slices of all shards come in a drawn order; the next few of them are a window, whose rows are
    shuffled: shards that nobody shuffled give mixed batches too. All draws depend on the seed and the numbers of epoch
    and window alone, so that a row's place depends neither on ranks nor on what was read before.

    Args:
        found: the shards with what their heads say; none without rows.
        seed: of the order.
        vocabulary: token ids must be below it; None where that is not known.
    """

    def __init__(self, found: Mapping[Path, Shape], seed: int, vocabulary: int | None) -> None:
        self._paths, self._shapes = list(found), list(found.values())
        self._seed, self._vocabulary = seed, vocabulary
        cuts = [
            (shard, start, min(start + size, shape.rows))
            for shard, (shape, size) in enumerate((shape, _slice_rows(shape)) for shape in self._shapes)
            for start in range(0, shape.rows, size)
        ]
        self._slices: NDArray[np.int64] = np.array(cuts, dtype=np.int64)
        self._sizes: NDArray[np.int64] = self._slices[:, 2] - self._slices[:, 1]
        self._per_window = max(1, -(-WINDOW // int(self._sizes.max())))
        self.rows = int(self._sizes.sum())
        """Rows of one epoch."""
        self._open: dict[int, tuple[h5py.File, Mapping[str, h5py.Dataset]]] = {}
        self._owner = 0
        # Reading goes forward: around a border two epochs and two windows are in use.
        self._epoch = lru_cache(maxsize=2)(self._draw)
        self._window = lru_cache(maxsize=2)(self._read_window)
        self._now = Window(0, 0, {})

    def read(self, start: int, count: int) -> Arrays:
        """Rows ``start`` to ``start + count - 1`` of the order, in the types of the files.

        They may share memory with what a later call gives, so that nobody should write into them.

        Raises:
            DataError: a shard is damaged there, or holds what cannot be.
        """
        stop = start + count
        parts: list[Arrays] = []
        while start < stop:
            if not self._now.first <= start < self._now.end:
                self._now = self._find(start)
            here, last = self._now.first, min(stop, self._now.end)
            parts.append({name: values[start - here : last - here] for name, values in self._now.rows.items()})
            start = last
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _find(self, row: int) -> Window:
        """The window that ``row`` of the order is in."""
        epoch, place = divmod(row, self.rows)
        _, ends = self._epoch(epoch)
        number = int(np.searchsorted(ends, place, side="right"))
        before = epoch * self.rows
        first = int(ends[number - 1]) if number else 0
        return Window(before + first, before + int(ends[number]), self._window(epoch, number))

    def _draw(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slices of an epoch in their order, and where each window of them ends."""
        order = self._random(epoch).permutation(len(self._slices))
        ends = np.cumsum(self._sizes[order])
        lasts = np.minimum(np.arange(0, order.size, self._per_window) + self._per_window, order.size) - 1
        return order, ends[lasts]

    def _random(self, *numbers: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox([self._seed, *numbers]))

    def _read_window(self, epoch: int, window: int) -> Arrays:
        """The rows of a window, shuffled."""
        order, _ = self._epoch(epoch)
        mine = order[window * self._per_window : (window + 1) * self._per_window]
        # In the order of the files: neighbours on the disk are read one behind the other.
        blocks = [self._read_slice(*map(int, self._slices[which])) for which in np.sort(mine)]
        shuffled = self._random(epoch, window).permutation(sum(len(block["input_ids"]) for block in blocks))
        return {name: np.concatenate([block[name] for block in blocks])[shuffled] for name in blocks[0]}

    def _read_slice(self, shard: int, start: int, stop: int) -> Arrays:
        path, shape = self._paths[shard], self._shapes[shard]
        block = shards.read(self._arrays(shard), path, shape, start, stop)
        check(block, shape, self._vocabulary, path, start)
        return block

    def _arrays(self, shard: int) -> Mapping[str, h5py.Dataset]:
        """The arrays of an open shard. HDF5's handles do not survive a fork, so each process opens its own."""
        if self._owner != os.getpid():
            self._open, self._owner = {}, os.getpid()
        if shard not in self._open:
            if len(self._open) >= MOST_OPEN:
                file, _ = self._open.pop(next(iter(self._open)))
                file.close()
            with shards.naming(self._paths[shard]):
                file = h5py.File(self._paths[shard], "r")
                self._open[shard] = file, {name: file[name] for name in self._shapes[shard].layout}
        return self._open[shard][1]


def _slice_rows(shape: Shape) -> int:
    """Whole chunks of the file, :data:`SLICE` rows or more."""
    whole = shape.chunk * -(-SLICE // shape.chunk) if shape.chunk else SLICE
    return min(whole, MOST_IN_SLICE)
