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

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.checks import check
from recipe_bert_dp.data.column import Column
from recipe_bert_dp.data.shards import Arrays, Shape

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
        self.paths, self._shapes = list(found), list(found.values())
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
        self._open: dict[int, tuple[h5py.File, Mapping[str, Column]]] = {}
        self._owner = 0
        # Reading goes forward: around a border two epochs and two windows are in use.
        self._epoch = lru_cache(maxsize=2)(self._draw)
        self._window = lru_cache(maxsize=2)(self._read_window)
        self._now = Window(0, 0, {})
        self._scratch: Arrays = {}

    def read(self, start: int, count: int) -> Arrays:
        """Rows ``start`` to ``start + count - 1`` of the order, in the types of the files.

        They may share memory with what a later call gives, so that nobody should write into them.

        Raises:
            DataError: a shard is damaged there, or holds what cannot be.
        """
        stop = start + count
        if self._now.first <= start and stop <= self._now.end:  # as mostly, and so it is quick
            part = slice(start - self._now.first, stop - self._now.first)
            return {name: values[part] for name, values in self._now.rows.items()}
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

    def left(self, start: int) -> int:
        """Number of rows from ``start`` on that are in memory."""
        return self._now.end - start if self._now.first <= start < self._now.end else 0

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
        # In the order of the files: neighbours on the disk are read one behind the other.
        mine = np.sort(order[window * self._per_window : (window + 1) * self._per_window])
        rows, first = self._unshuffled(), 0
        for shard, start, stop in self._slices[mine].tolist():
            last = first + stop - start
            self._read_slice(shard, start, {name: values[first:last] for name, values in rows.items()})
            first = last
        shuffled = self._random(epoch, window).permutation(first)
        return {name: values[:first].take(shuffled, axis=0) for name, values in rows.items()}

    def _unshuffled(self) -> Arrays:
        """Memory for the rows of a window as they come from the files, the same for each: fresh memory costs as much as
        filling it."""
        if not self._scratch:
            most = int(np.sort(self._sizes)[-self._per_window :].sum())
            with shards.opened(self.paths[0]) as file, shards.naming(self.paths[0]):
                kinds = self._shapes[0].layout
                self._scratch = {name: np.empty((most, *file[name].shape[1:]), kind) for name, kind in kinds.items()}
        return self._scratch

    def _read_slice(self, shard: int, start: int, rows: Arrays) -> None:
        """Fill ``rows`` with those of a shard from ``start`` on, and look at their numbers."""
        path = self.paths[shard]
        with shards.damaged(path, start, start + len(rows["input_ids"])):
            for name, column in self._columns(shard).items():
                column.read(rows[name], start)
        check(rows, self._shapes[shard], self._vocabulary, path, start)

    def _columns(self, shard: int) -> Mapping[str, Column]:
        """The arrays of an open shard. HDF5's handles do not survive a fork, so each process opens its own."""
        if self._owner != os.getpid():
            self._open, self._owner = {}, os.getpid()
        if shard not in self._open:
            if len(self._open) >= MOST_OPEN:
                file, _ = self._open.pop(next(iter(self._open)))
                file.close()
            with shards.naming(self.paths[shard]):
                file = h5py.File(self.paths[shard], "r")
                kinds = self._shapes[shard].layout
                self._open[shard] = file, {name: Column(file[name], kind) for name, kind in kinds.items()}
        return self._open[shard][1]


def _slice_rows(shape: Shape) -> int:
    """Whole chunks of the file, :data:`SLICE` rows or more."""
    whole = shape.chunk * -(-SLICE // shape.chunk) if shape.chunk else SLICE
    return min(whole, MOST_IN_SLICE, shape.rows_at_once)
