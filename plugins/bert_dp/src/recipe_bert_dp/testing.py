"""Batches for tests of the model: plain rows of given lengths, and the same samples packed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from recipe_core import Batch

_BY_TOKEN = ("input_ids", "input_mask", "segment_ids")
_BY_PREDICTION = ("masked_lm_positions", "masked_lm_ids")
_BY_SLOT = ("next_sentence_positions", "next_sentence_labels", "next_sentence_weights")


def plain_rows(lengths: Sequence[int], *, sequence: int, predictions: int, vocabulary: int, seed: int = 3) -> Batch:
    """Random samples with ``lengths`` tokens, one per row ``[len(lengths), sequence]``, padded with zeros.

    Even rows have ``predictions / 2`` predictions, rounded up, odd ones ``predictions``, or as many as fit.
    """
    random = np.random.default_rng(seed)
    rows = len(lengths)
    arrays = {name: np.zeros((rows, sequence), np.int64) for name in _BY_TOKEN}
    arrays |= {name: np.zeros((rows, predictions), np.int64) for name in _BY_PREDICTION}
    for row, length in enumerate(lengths):
        arrays["input_ids"][row, :length] = random.integers(1, vocabulary, length)
        arrays["input_mask"][row, :length] = 1
        arrays["segment_ids"][row, length // 2 : length] = 1
        count = min(predictions if row % 2 else -(-predictions // 2), length - 1)
        arrays["masked_lm_positions"][row, :count] = np.sort(random.permutation(length - 1)[:count] + 1)
        arrays["masked_lm_ids"][row, :count] = random.integers(1, vocabulary, count)
    arrays["next_sentence_labels"] = random.integers(0, 2, rows)
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def packed_rows(plain: Batch, rows: Sequence[Sequence[int]], *, sequence: int, slots: int = 3) -> Batch:
    """The samples of ``plain`` in packed rows of ``sequence`` tokens; ``rows`` lists the samples of each row."""
    predictions = slots * plain["masked_lm_ids"].shape[1]
    widths = dict.fromkeys((*_BY_TOKEN, "positions"), sequence)
    widths |= dict.fromkeys(_BY_PREDICTION, predictions) | dict.fromkeys(_BY_SLOT, slots)
    packed = {name: torch.zeros(len(rows), width, dtype=torch.int64) for name, width in widths.items()}
    for row, numbers in enumerate(rows):
        start = used = 0
        for slot, number in enumerate(numbers):
            length = int(plain["input_mask"][number].sum())
            count = int((plain["masked_lm_positions"][number] != 0).sum())
            tokens, places = slice(start, start + length), slice(used, used + count)
            packed["input_ids"][row, tokens] = plain["input_ids"][number, :length]
            packed["segment_ids"][row, tokens] = plain["segment_ids"][number, :length]
            packed["input_mask"][row, tokens] = slot + 1
            packed["positions"][row, tokens] = torch.arange(length)
            packed["masked_lm_positions"][row, places] = plain["masked_lm_positions"][number, :count] + start
            packed["masked_lm_ids"][row, places] = plain["masked_lm_ids"][number, :count]
            packed["next_sentence_positions"][row, slot] = start
            packed["next_sentence_labels"][row, slot] = plain["next_sentence_labels"][number]
            packed["next_sentence_weights"][row, slot] = 1
            start, used = start + length, used + count
    return packed
