"""Range checks of the numbers of a shard as they are read; a model would fail on them without naming the row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recipe_bert_dp.data.shards import Arrays, ShardShape
from recipe_core import DataError


def check(block: Arrays, shape: ShardShape, vocabulary: int | None, path: Path, first: int) -> None:
    """Check that all numbers of ``block`` are in range; its rows start at row ``first`` of the shard ``path``.

    Raises:
        DataError: a number is out of range; the message names the shard and the row, and says what to do.
    """
    for name, most in _largest(shape, vocabulary):
        values = block[name]
        # As unsigned integers, negative numbers are large, so that one pass finds both.
        if not values.size or values.view(f"u{values.itemsize}").max() <= most:
            continue
        row, *_ = np.argwhere((values < 0) | (values > most))[0]
        wrong = values[row][(values[row] < 0) | (values[row] > most)].flat[0]
        raise DataError(
            f"{path}: row {first + row}: {name} holds {wrong}, expected 0 to {most}"
            + (_vocabulary_hint(vocabulary) if name.endswith("_ids") and name != "segment_ids" else _HINT)
        )


_HINT = "; `recipe verify` tells what else is wrong with it"


def _vocabulary_hint(vocabulary: int | None) -> str:
    return f": the vocabulary of the model has {vocabulary:,} entries; raise model.vocabulary, or prepare with another"


def _largest(shape: ShardShape, vocabulary: int | None) -> Iterator[tuple[str, int]]:
    if vocabulary is not None:
        yield "input_ids", vocabulary - 1
        yield "masked_lm_ids", vocabulary - 1
    yield "masked_lm_positions", shape.sequence - 1
    yield "segment_ids", 1
    yield "next_sentence_labels", 1
    yield "input_mask", shape.slots or 1
    if shape.packed:
        yield "positions", shape.sequence - 1
        yield "next_sentence_positions", shape.sequence - 1
        yield "next_sentence_weights", 1
