"""Unigram entropy of the masked words, for the closing words of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data import corpus, shards
from recipe_bert_dp.data.facts import check
from recipe_bert_dp.settings import BertHdf5
from recipe_core import Job, RecipeError, Run

MOST_ROWS = 200_000
"""Rows whose masked words are counted, evenly from all shards: some millions of words, in a second."""


def closing(module: Any, job: Job, run: Run) -> dict[str, Any]:
    """The unigram entropy of the masked words, which a model's masked-word loss is to be compared with.

    Returns:
        ``unigram_entropy`` in nats, and a note for the closing summary. Nothing on other ranks, and where the shards
        cannot be read any more: a run that has finished must not fail by it.
    """
    config = job.data.config
    if run.rank != 0 or not isinstance(config, BertHdf5):
        return {}
    try:
        entropy = unigram_entropy(corpus.filled(config, run.cache))
    except RecipeError:
        return {}
    said = f"{entropy:.4f} nats: the masked-word loss of one who only knows how frequent each word is"
    return {"unigram_entropy": entropy, "notes": {"unigram entropy": said}}


def unigram_entropy(config: BertHdf5) -> float:
    """Entropy, in nats, of the words that are masked in the training shards: -sum(p log p) over their frequencies p.

    Raises:
        DataError: a shard cannot be read.
    """
    paths = check(config, "training")
    each = max(1, MOST_ROWS // len(paths))
    words: list[NDArray[np.int32]] = []
    for path in paths:
        with shards.opened(path) as file, shards.naming(path):
            words.append(file["masked_lm_ids"][:each][file["masked_lm_positions"][:each] != 0])
    # Sorted rather than used as places: rows that the run has not come to may hold any number.
    _, counts = np.unique(np.concatenate(words), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
