"""The dataset ``gpt_indexed``: batches of token ids straight from memory-mapped files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch

from recipe_core import Batch, Run
from recipe_megatron_gpt.data.blend import Phased, blend
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.order import MASKED, BlendPart, Order
from recipe_megatron_gpt.data.remote.ahead import Ahead
from recipe_megatron_gpt.data.sources import TokenFiles, distinct, phases_of, split_ranges
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
        self._phases = phases_of(config, run.cache)
        self._cache = run.cache / "gpt_indexed"
        self._files = {
            key: IndexedFile.open(source.prefix, self._cache, access="random")
            for key, source in distinct(self._phases).items()
        }
        self._orders: dict[str, Order] = {}
        remote = any(file.source is not None for file in self._files.values())
        self._ahead = Ahead(run, self._order, config.fetch_memory * 10**6) if remote else None
        # Raises problems of a split before the first step, not at the first evaluation.
        for split in ("train", "valid") if run.train.eval_every else ("train",):
            self._order(split)

    def read(self, split: str, start: int, count: int) -> Batch:
        """Samples ``start`` to ``start + count - 1`` of ``split``.

        Returns:
            ``tokens`` and ``labels``, int64 ``[count, sequence]``; labels are the next tokens. With a document mask,
            also ``document_ids`` and ``loss_mask``, see :mod:`recipe_core.ops.documents`.

        Raises:
            DataError: a token id is not in the model's vocabulary.
            ObjectError: tokens cannot be fetched from object storage.
        """
        with nullcontext() if self._ahead is None else self._ahead.present(split, start, count):
            ids = torch.from_numpy(self._order(split).gather(np.arange(start, start + count)))
        if self._config.document_mask:
            rows = dict(zip(MASKED, ids.unbind(1), strict=True))
            return {name: (row != 0 if name == "loss_mask" else row.contiguous()) for name, row in rows.items()}
        return {"tokens": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    def _order(self, split: str) -> Order:
        if split not in self._orders:
            self._orders[split] = self._build_order(split)
        return self._orders[split]

    def _build_order(self, split: str) -> Order:
        train = split == "train"
        # Validation stays with the first phase, so that its losses can be compared over the whole run.
        phases = self._phases if train else self._phases[:1]
        parts = [self._parts(split, phase.sources) for phase in phases]
        if len(parts) > 1:
            return Phased(parts, [phase.at for phase in phases], self._cache)
        requested = self._run.train_samples if train else self._run.train.eval_samples
        return blend(parts[0], self._config.order, requested, self._cache)

    def _parts(self, split: str, sources: Sequence[TokenFiles]) -> list[BlendPart]:
        config, run = self._config, self._run
        limit = np.iinfo(np.int32).max if run.vocabulary is None else run.vocabulary
        parts = []
        for source in sources:
            file = self._files[source.key]
            sequences = split_ranges(file.sizes.size, config.split)[split]
            parts.append(
                BlendPart(
                    file, split, sequences, config.sequence, run.train.seed, limit, self._cache, source.weight,
                    config.document_mask, config.rows == "packed",
                )
            )  # fmt: skip
        # A small file of a blend may have no tokens for validation.
        return parts if split == "train" else [part for part in parts if part.tokens] or parts
