"""Unigram entropy of the masked words, for the closing summary of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data import corpus, shards
from recipe_bert_dp.data.facts import check
from recipe_bert_dp.settings import BertHdf5
from recipe_core import Job, RecipeError, Run

MOST_ROWS = 200_000
"""Rows whose masked words are counted, evenly from all shards: millions of words, in about a second."""


def closing(module: Any, job: Job, run: Run) -> dict[str, Any]:
    """Unigram entropy of the masked words, a baseline for the masked-word loss.

    Returns:
        ``unigram_entropy`` in nats, and a note for the closing summary. Empty on ranks other than 0, and if the shards
        can no longer be read, since a finished run must not fail for it.
    """
    config = job.data.config
    if run.rank != 0 or not isinstance(config, BertHdf5):
        return {}
    try:
        entropy = unigram_entropy(corpus.with_files(config, run.cache))
    except RecipeError:
        return {}
    note = f"{entropy:.4f} nats: the masked-word loss of one who only knows how frequent each word is"
    return {"unigram_entropy": entropy, "notes": {"unigram entropy": note}}


def unigram_entropy(config: BertHdf5) -> float:
    """Entropy in nats of the masked words of the training shards: -sum(p log p) over their frequencies p.

    Raises:
        DataError: a shard cannot be read.
    """
    paths = check(config, "training")
    rows_per_shard = max(1, MOST_ROWS // len(paths))
    words: list[NDArray[np.int32]] = []
    for path in paths:
        with shards.opened(path) as file, shards.naming(path):
            words.append(file["masked_lm_ids"][:rows_per_shard][file["masked_lm_positions"][:rows_per_shard] != 0])
    # Not bincount: rows that the run did not read are unchecked, and may hold any number.
    _, counts = np.unique(np.concatenate(words), return_counts=True)
    frequencies = counts / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())
