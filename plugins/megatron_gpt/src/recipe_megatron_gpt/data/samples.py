"""The dataset ``gpt_indexed``: batches of token ids straight from memory-mapped files."""

from __future__ import annotations

import numpy as np
import torch

from recipe_core import Batch, Run
from recipe_megatron_gpt.data import corpus
from recipe_megatron_gpt.data.blend import blend
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.order import BlendPart, Order
from recipe_megatron_gpt.data.sources import TokenFiles, parse, split_ranges
from recipe_megatron_gpt.settings import GptIndexed


def build(config: GptIndexed, run: Run) -> GptSamples:
    """Open the files, and build or map their indices.

    Raises:
        DataError: a file is missing or damaged, or a split that the run reads is empty.
        DiskError: the cache cannot be written.
    """
    return GptSamples(config, run)


class GptSamples:
    """The samples of a run, see :class:`recipe_core.layouts.parallel.Samples`."""

    def __init__(self, config: GptIndexed, run: Run) -> None:
        self._config = config
        self._run = run
        self._sources = parse(config.files) or [TokenFiles(corpus.prepare(run.cache, config.vocabulary), None)]
        self._cache = run.cache / "gpt_indexed"
        self._files = [IndexedFile.open(source.prefix, self._cache, access="random") for source in self._sources]
        self._orders: dict[str, Order] = {}
        # Raises problems of a split before the first step, not at the first evaluation.
        for split in ("train", "valid") if run.train.eval_every else ("train",):
            self._order(split)

    def read(self, split: str, start: int, count: int) -> Batch:
        """Samples ``start`` to ``start + count - 1`` of ``split``.

        Returns:
            ``tokens`` and ``labels``, int64 ``[count, sequence]``; labels are the next tokens.

        Raises:
            DataError: a token id is not in the model's vocabulary.
        """
        ids = torch.from_numpy(self._order(split).gather(np.arange(start, start + count)))
        return {"tokens": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    def _order(self, split: str) -> Order:
        if split not in self._orders:
            self._orders[split] = self._build_order(split)
        return self._orders[split]

    def _build_order(self, split: str) -> Order:
        config, run = self._config, self._run
        cache, seed = self._cache, run.train.seed
        limit = np.iinfo(np.int32).max if run.vocabulary is None else run.vocabulary
        parts = []
        for source, file in zip(self._sources, self._files, strict=True):
            sequences = split_ranges(file.sizes.size, config.split)[split]
            parts.append(BlendPart(file, split, sequences, config.sequence, seed, limit, cache, source.weight))
        if split != "train":
            # A small file of a blend may have no tokens for validation.
            parts = [part for part in parts if part.tokens] or parts
        requested = run.train_samples if split == "train" else run.train.eval_samples
        return blend(parts, config.order, requested, cache)
