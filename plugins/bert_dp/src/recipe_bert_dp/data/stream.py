"""The rows of shards in an endless shuffled order that depends on the seed alone, read many at a time."""

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
from recipe_bert_dp.data.shards import Arrays, ShardShape

SLICE = shards.CHUNK
"""Minimum number of rows per read."""
MOST_IN_SLICE = 4096
"""Maximum number: longer chunks are read more than once, which bounds the memory."""
WINDOW = 2048
"""Minimum number of rows that are shuffled together."""
MOST_OPEN = 64
"""Maximum number of open shards."""


class ShuffledWindow(NamedTuple):
    """Rows that were shuffled together: places ``first`` to ``end - 1`` of the order."""

    first: int
    end: int
    rows: Arrays


class ShuffledRows:
    """The rows of shards, epoch after epoch; each epoch has every row once.

    Shards are cut into slices of whole chunks of the file, so that reading never goes row by row. Each epoch permutes
    the slices of all shards; a few consecutive slices form a window, whose rows are shuffled, so that unshuffled shards
    give mixed batches too. The random numbers depend on the seed and the numbers of epoch and window alone: the place
    of a row depends neither on ranks nor on earlier reads.

    Args:
        shapes: the shards, each with at least one row.
        seed: of the order.
        vocabulary: upper bound of token ids; None to not check them.
    """

    def __init__(self, shapes: Mapping[Path, ShardShape], seed: int, vocabulary: int | None) -> None:
        self.paths, self._shapes = list(shapes), list(shapes.values())
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
        """Rows per epoch."""
        self._open: dict[int, tuple[h5py.File, Mapping[str, Column]]] = {}
        self._owner = 0
        # Reads go forward, and use two epochs and two windows around a boundary.
        self._epoch = lru_cache(maxsize=2)(self._draw)
        self._window = lru_cache(maxsize=2)(self._read_window)
        self._current = ShuffledWindow(0, 0, {})
        self._scratch: Arrays = {}

    def read(self, start: int, count: int) -> Arrays:
        """Rows ``start`` to ``start + count - 1`` of the order, in the dtypes of the files.

        Do not modify the arrays: they may share memory with those of later calls.

        Raises:
            DataError: a shard is damaged there, or has a number out of range.
        """
        stop = start + count
        if self._current.first <= start and stop <= self._current.end:  # the usual case, without a copy
            part = slice(start - self._current.first, stop - self._current.first)
            return {name: values[part] for name, values in self._current.rows.items()}
        parts: list[Arrays] = []
        while start < stop:
            if not self._current.first <= start < self._current.end:
                self._current = self._window_of(start)
            first, last = self._current.first, min(stop, self._current.end)
            parts.append({name: values[start - first : last - first] for name, values in self._current.rows.items()})
            start = last
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def left(self, start: int) -> int:
        """Number of rows from ``start`` on that are in memory."""
        return self._current.end - start if self._current.first <= start < self._current.end else 0

    def _window_of(self, row: int) -> ShuffledWindow:
        epoch, place = divmod(row, self.rows)
        _, ends = self._epoch(epoch)
        number = int(np.searchsorted(ends, place, side="right"))
        before = epoch * self.rows
        first = int(ends[number - 1]) if number else 0
        return ShuffledWindow(before + first, before + int(ends[number]), self._window(epoch, number))

    def _draw(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        # The slices of an epoch in order, and the row at which each window ends.
        order = self._random(epoch).permutation(len(self._slices))
        ends = np.cumsum(self._sizes[order])
        lasts = np.minimum(np.arange(0, order.size, self._per_window) + self._per_window, order.size) - 1
        return order, ends[lasts]

    def _random(self, *numbers: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox([self._seed, *numbers]))

    def _read_window(self, epoch: int, window: int) -> Arrays:
        order, _ = self._epoch(epoch)
        # Sorted, so that neighbours on the disk are read one after the other.
        slices = np.sort(order[window * self._per_window : (window + 1) * self._per_window])
        rows, first = self._unshuffled(), 0
        for shard, start, stop in self._slices[slices].tolist():
            last = first + stop - start
            self._read_slice(shard, start, {name: values[first:last] for name, values in rows.items()})
            first = last
        shuffled = self._random(epoch, window).permutation(first)
        return {name: values[:first].take(shuffled, axis=0) for name, values in rows.items()}

    def _unshuffled(self) -> Arrays:
        # One buffer for the unshuffled rows of all windows: allocating memory takes as long as filling it.
        if not self._scratch:
            most = int(np.sort(self._sizes)[-self._per_window :].sum())
            with shards.opened(self.paths[0]) as file, shards.naming(self.paths[0]):
                kinds = self._shapes[0].layout
                self._scratch = {name: np.empty((most, *file[name].shape[1:]), kind) for name, kind in kinds.items()}
        return self._scratch

    def _read_slice(self, shard: int, start: int, rows: Arrays) -> None:
        path = self.paths[shard]
        with shards.damaged(path, start, start + len(rows["input_ids"])):
            for name, column in self._columns(shard).items():
                column.read(rows[name], start)
        check(rows, self._shapes[shard], self._vocabulary, path, start)

    def _columns(self, shard: int) -> Mapping[str, Column]:
        # HDF5's handles do not survive a fork, so each process opens its own.
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


def _slice_rows(shape: ShardShape) -> int:
    whole = shape.chunk * -(-SLICE // shape.chunk) if shape.chunk else SLICE
    return min(whole, MOST_IN_SLICE, shape.rows_at_once)
