"""The datasets ``bert_hdf5`` and ``bert_packed``: batches from plain and packed shards."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from recipe_bert_dp import shards
from recipe_bert_dp.config import BertHdf5
from recipe_bert_dp.data_facts import check
from recipe_bert_dp.shards import Arrays, Shape
from recipe_core.errors import DataError
from recipe_core.parallel import Batch, Run

SLICE = shards.CHUNK
"""Rows that are read at once. A slice is what is shuffled: inside, the rows keep the order that preparation drew."""
KEPT = 4
"""Slices that stay in memory, so that micro batches that share one read it once."""
_SPLITS = {"train": "training", "valid": "test"}


def build(config: BertHdf5, run: Run) -> BertSamples:
    """Look at the heads of all shards, and check them against the settings.

    Raises:
        DataError: there is no shard, or one is damaged or does not fit the settings.
    """
    return BertSamples(config, run)


class BertSamples:
    """The samples of a run, as :class:`recipe_core.parallel.Samples` describes.

    The order is epoch after epoch; in each, the slices of all shards come in an order of their own, drawn from the seed
    and the number of the epoch. So a sample's place depends on nothing else, neither on ranks nor on what was read.
    """

    def __init__(self, config: BertHdf5, run: Run) -> None:
        self._config, self._run = config, run
        self._splits: dict[str, Split] = {}
        for split in ("train", "valid") if run.train.eval_every else ("train",):
            self._split(split)

    def read(self, split: str, start: int, count: int) -> Batch:
        """Samples ``start`` to ``start + count - 1`` of ``split``: the arrays of the shards, int64 ``[count, ...]``.

        Raises:
            DataError: a shard is damaged, or a token id is not in the model's vocabulary.
        """
        found = self._split(split).read(start, count)
        self._check_ids(found["input_ids"], split, start)
        self._check_ids(found["masked_lm_ids"], split, start)
        return {name: torch.from_numpy(values.astype(np.int64)) for name, values in found.items()}

    def _check_ids(self, ids: NDArray[Any], split: str, start: int) -> None:
        limit = self._run.vocabulary
        if limit is not None and (ids.min() < 0 or ids.max() >= limit):
            wrong = ids[(ids < 0) | (ids >= limit)][0]
            raise DataError(
                f"data.files: a sample from {start} on of the split {split!r} has the token id {wrong}, expected ids "
                f"below {limit}, the vocabulary of the model; raise model.vocabulary, or prepare with its vocab.txt"
            )

    def _split(self, name: str) -> Split:
        if name not in self._splits:
            found = check(self._config, _SPLITS[name])
            if not found and name == "valid":
                raise DataError(
                    f"data.files: no test shard (*test*.hdf5) in {', '.join(self._config.files)}, which evaluation "
                    "needs; prepare with test_share above 0, or set train.eval_every=0"
                )
            self._splits[name] = Split(found, self._run.train.seed)
        return self._splits[name]


class Split:
    """The rows of some shards, in an endless order."""

    def __init__(self, found: dict[Path, Shape], seed: int) -> None:
        self._paths, self._shapes, self._seed = list(found), list(found.values()), seed
        starts = [(shard, start) for shard, shape in enumerate(self._shapes) for start in range(0, shape.rows, SLICE)]
        self._slices = np.array(starts, dtype=np.int64)
        rows = np.array([shape.rows for shape in self._shapes])[self._slices[:, 0]]
        self._sizes = np.minimum(rows - self._slices[:, 1], SLICE)
        self._files: dict[int, h5py.File] = {}
        self._owner = 0
        # Reading goes forward: around a border two epochs are in use.
        self._epoch = lru_cache(maxsize=2)(self._draw)
        self._slice = lru_cache(maxsize=KEPT)(self._read_slice)

    @property
    def samples(self) -> int:
        """Rows of one epoch."""
        return int(self._sizes.sum())

    def read(self, start: int, count: int) -> Arrays:
        """Rows ``start`` to ``start + count - 1`` of the order."""
        parts: list[Arrays] = []
        while count:
            epoch, place = divmod(start, self.samples)
            order, ends = self._epoch(epoch)
            at = int(np.searchsorted(ends, place, side="right"))
            which = int(order[at])
            first = place - int(ends[at] - self._sizes[which])
            last = min(first + count, int(self._sizes[which]))
            parts.append({name: values[first:last] for name, values in self._slice(which).items()})
            start, count = start + last - first, count - (last - first)
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _draw(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The slices of an epoch in their order, and where each ends."""
        order = np.random.Generator(np.random.Philox([self._seed, epoch])).permutation(len(self._slices))
        return order, np.cumsum(self._sizes[order])

    def _read_slice(self, which: int) -> Arrays:
        shard, start = map(int, self._slices[which])
        shape = self._shapes[shard]
        stop = start + int(self._sizes[which])
        return shards.read(self._file(shard), self._paths[shard], shape, start, stop)

    def _file(self, shard: int) -> h5py.File:
        """An open shard. HDF5's handles do not survive a fork, so each process opens its own."""
        if self._owner != os.getpid():
            self._files, self._owner = {}, os.getpid()
        if shard not in self._files:
            if len(self._files) >= 64:
                self._files.pop(next(iter(self._files))).close()
            with shards.naming(self._paths[shard]):
                self._files[shard] = h5py.File(self._paths[shard], "r")
        return self._files[shard]
