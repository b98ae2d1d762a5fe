"""Rules for every row of a shard, for ``recipe verify``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from recipe_bert_dp.data.decode import WordPieces
from recipe_bert_dp.data.shards import Arrays, ShardShape, used_predictions

Wrong = Any
"""True for each row that breaks a rule: bool ``[rows]``."""


def problems_of(block: Arrays, shape: ShardShape, pieces: WordPieces | None, where: str, first: int) -> list[str]:
    """A message for each rule that rows of ``block`` break, with the first such row; ``first`` numbers its first
    row."""
    problems = []
    for rule, wrong in _rules(block, shape, pieces):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            more = int(wrong.sum()) - 1
            problems.append(f"{where} {first + row}: {rule}" + (f" (and {more:,} more rows)" if more else ""))
    return problems


def _rules(block: Arrays, shape: ShardShape, pieces: WordPieces | None) -> Iterator[tuple[str, Wrong]]:
    mask, real = block["input_mask"], block["input_mask"] != 0
    yield from _mask_rules(block, shape)
    segments = block["segment_ids"]
    yield "segment_ids is not 0 or 1, or not 0 on padding", ((segments & ~1) != 0).any(1) | (segments * ~real).any(1)
    positions, used = block["masked_lm_positions"], used_predictions(block["masked_lm_positions"])
    predicted = np.arange(shape.predictions) < used[:, None]
    rising = np.diff(positions, axis=1) > 0
    inside = (positions >= 0) & (positions < shape.sequence)
    yield (
        "masked_lm_positions does not rise, or is not 0 from its end on",
        (~rising & predicted[:, 1:]).any(1) | ((positions != 0) & ~predicted).any(1),
    )
    yield f"masked_lm_positions is not below {shape.sequence}", ~inside.all(1)
    yield "no token is predicted", used == 0
    at = np.take_along_axis(mask, np.where(inside, positions, 0), axis=1)
    yield "a prediction is on padding", (predicted & (at == 0)).any(1)
    next_labels = block["next_sentence_labels"].reshape(len(mask), -1)
    yield "next_sentence_labels is not 0 or 1", ((next_labels & ~1) != 0).any(1)
    ids, labels = block["input_ids"], block["masked_lm_ids"]
    limit = pieces.size if pieces else 1 << 31
    bound = f" to below {limit:,}, as the vocabulary has" if pieces else ""
    yield f"input_ids is not from 0{bound}", ((ids < 0) | (ids >= limit)).any(1)
    yield f"masked_lm_ids is not from 0{bound}", ((labels < 0) | (labels >= limit)).any(1)
    if pieces is not None:
        # [MASK] may be at a predicted position, unlike [CLS], [SEP] and padding.
        special = pieces.special()
        inputs = np.take_along_axis(ids, np.where(inside, positions, 0), axis=1)
        masks = [number for number, piece in pieces.names.items() if piece == "[MASK]"]
        on = np.isin(inputs, np.setdiff1d(special, masks)) | np.isin(labels, special)
        yield "a special token is predicted", (predicted & on).any(1)


def _mask_rules(block: Arrays, shape: ShardShape) -> Iterator[tuple[str, Wrong]]:
    mask = block["input_mask"]
    rows = len(mask)
    steps = np.diff(mask.astype(np.int32), axis=1)
    if not shape.packed:
        yield (
            "input_mask is not ones and then zeros",
            (mask[:, 0] != 1) | ~np.isin(steps, (0, -1)).all(1) | ((mask & ~1) != 0).any(1),
        )
        return
    samples = mask.max(axis=1)
    ends = (mask == 0) & (np.concatenate([np.zeros((rows, 1), mask.dtype), mask[:, :-1]], axis=1) == samples[:, None])
    rises = (steps == 0) | (steps == 1) | ends[:, 1:]
    yield "input_mask does not count the samples from 1, then 0", (mask[:, 0] != 1) | ~rises.all(1) | (mask < 0).any(1)
    counted = np.arange(1, shape.slots + 1) <= samples[:, None]
    yield "next_sentence_weights is not 1 for each sample, then 0", (block["next_sentence_weights"] != counted).any(1)
    starts = np.concatenate([np.ones((rows, 1), bool), steps != 0], axis=1) & (mask != 0)
    first = np.maximum.accumulate(np.where(starts, np.arange(shape.sequence), 0), axis=1)
    positions = np.where(mask != 0, np.arange(shape.sequence) - first, 0)
    yield "positions does not start again with each sample", (block["positions"] != positions).any(1)
    places = block["next_sentence_positions"]
    inside = (places >= 0) & (places < shape.sequence)
    right = np.take_along_axis(starts, np.where(inside, places, 0), axis=1) & inside
    in_order = np.take_along_axis(mask, np.where(inside, places, 0), axis=1) == np.arange(1, shape.slots + 1)
    yield "next_sentence_positions is not where each sample starts", (counted & ~(right & in_order)).any(1)
