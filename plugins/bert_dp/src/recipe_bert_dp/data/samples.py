"""The datasets ``bert_hdf5`` and ``bert_packed``: batches from plain and packed shards."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import torch

from recipe_bert_dp.data import corpus
from recipe_bert_dp.data.facts import check
from recipe_bert_dp.data.stream import ShuffledRows
from recipe_bert_dp.settings import BertHdf5
from recipe_core import Batch, DataError, Run

_SPLITS = {"train": "training", "valid": "test"}
_AT_ONCE = 32
"""Number of batches that are cut at once for consecutive reads."""


def build(config: BertHdf5, run: Run) -> BertSamples:
    """Check the headers of all shards against the settings; without files, build the embedded corpus.

    Raises:
        DataError: there is no shard, or one is damaged or does not fit the settings.
        DiskError: the cache cannot be written.
    """
    return BertSamples(config, run)


class BertSamples:
    """Samples of a run, see :class:`recipe_core.layouts.parallel.Samples`. A sample is a row, packed or not."""

    def __init__(self, config: BertHdf5, run: Run) -> None:
        self._config, self._run = corpus.with_files(config, run.cache), run
        self._streams: dict[str, ShuffledRows] = {}
        self._cut: dict[tuple[str, int, int], Batch] = {}
        self._last: tuple[str, int] | None = None
        # Report problems of the test shards before the first step, not at the first evaluation.
        for split in ("train", "valid") if run.train.eval_every else ("train",):
            self._stream(split)

    def read(self, split: str, start: int, count: int) -> Batch:
        """Rows ``start`` to ``start + count - 1`` of ``split``: the arrays of the shards, ``[count, ...]``.

        Their integers are as narrow as in the files; on the device they become int64.

        Raises:
            DataError: a shard is damaged or has a number out of range, such as a token id beyond the vocabulary.
        """
        batch = self._cut.pop((split, start, count), None)
        if batch is None:
            # Creating a tensor per array of each small batch takes as long as all the rest; Tensor.split is faster.
            number = self._stream(split).left(start) // count if self._last == (split, start) else 1
            self._cut = dict(self._batches(split, start, count, max(1, min(number, _AT_ONCE))))
            batch = self._cut.pop((split, start, count))
        self._last = split, start + count
        return batch

    def _batches(self, split: str, start: int, count: int, number: int) -> Iterator[tuple[tuple[str, int, int], Batch]]:
        rows = self._stream(split).read(start, number * count)
        parts = zip(*(torch.from_numpy(values).split(count) for values in rows.values()), strict=True)
        for i, part in enumerate(parts):
            yield (split, start + i * count, count), dict(zip(rows, part, strict=True))

    def position(self, consumed: int) -> tuple[int, Fraction, list[str]]:
        """Position after ``consumed`` training rows, for scripts that read shard after shard.

        Returns:
            Epoch, completed fraction of it (below 1), and shards. Rows come from all shards at once, so that no shard
            is complete before the epoch.
        """
        stream = self._stream("train")
        epoch, done = divmod(consumed, stream.rows)
        return epoch, Fraction(done, stream.rows), [str(path.absolute()) for path in stream.paths]

    def _stream(self, split: str) -> ShuffledRows:
        if split not in self._streams:
            shapes = check(self._config, _SPLITS[split])
            if not shapes:
                raise DataError(
                    f"data.files: no test shard (*test*.hdf5) in {', '.join(self._config.files)}, which evaluation "
                    "needs; prepare with test_share above 0, or set train.eval_every=0"
                )
            self._streams[split] = ShuffledRows(shapes, self._run.train.seed, self._run.vocabulary)
        return self._streams[split]
