"""Plain twins of the functions of ``recipe_index``, in NumPy, for tests: slow and short.

Wherever ``megatron`` is true the results equal those of megatron-core 0.16, which shuffles with one NumPy
``RandomState(seed)``. Otherwise :mod:`reference.plain_shuffle` says how the order is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_index.idx import Idx
from reference.plain_checks import (
    MOST_ENTRIES,
    MOST_ORDERED,
    MOST_SEED,
    MOST_SEQUENCE,
    array,
    indices,
    integer,
    not_empty,
    not_negative,
)
from reference.plain_idx import parse_idx
from reference.plain_shuffle import DOCUMENTS, LAST_DOCUMENTS, LAST_SAMPLES, SAMPLES, fast_shuffle

__all__ = ["Idx", "blending_index", "document_order", "gather", "parse_idx", "sample_index", "shuffle_index"]


def document_order(
    documents: NDArray[np.int32], epochs: int, seed: int, separate_last_epoch: bool, megatron: bool
) -> NDArray[np.int32]:
    """The plain twin of :func:`recipe_index.document_order`."""
    documents = array("documents", documents, (np.int32,))
    epochs = integer("epochs", epochs, 1, MOST_ORDERED)
    seed = integer("seed", seed, 0, MOST_SEED)
    not_empty("documents", documents)
    if epochs > MOST_ORDERED // documents.size:
        raise ValueError(
            f"epochs: {epochs} epochs of {documents.size} documents are too many; "
            f"expected at most {MOST_ORDERED} entries"
        )
    not_negative("documents", documents)
    order = np.tile(documents, epochs)
    last = documents.size if separate_last_epoch and epochs > 1 else 0
    first = order.size - last
    if megatron:
        state = np.random.RandomState(seed)
        state.shuffle(order[:first])
        state.shuffle(order[first:])
    else:
        fast_shuffle(order[:first], seed, DOCUMENTS)
        fast_shuffle(order[first:], seed, LAST_DOCUMENTS)
    return order


def sample_index(
    sizes: NDArray[np.int32], order: NDArray[np.int32], sequence: int, samples: int
) -> NDArray[np.int32] | NDArray[np.int64]:
    """The plain twin of :func:`recipe_index.sample_index`."""
    sizes = array("sizes", sizes, (np.int32,))
    order = array("order", order, (np.int32,))
    sequence = integer("sequence", sequence, 1, MOST_SEQUENCE)
    samples = integer("samples", samples, 0, MOST_ENTRIES)
    not_empty("sizes", sizes)
    not_empty("order", order)
    if order.size > MOST_ORDERED:
        raise ValueError(f"order: expected at most {MOST_ORDERED} entries, got {order.size}")
    not_negative("sizes", sizes)
    indices("order", order, sizes.size)
    ends = np.cumsum(sizes[order], dtype=np.int64)
    tokens = int(ends[-1])
    if tokens < samples * sequence + 1:
        raise ValueError(
            f"samples: expected at most {max(0, tokens - 1) // sequence}, got {samples}: "
            f"the order holds {tokens} tokens"
        )
    starts = np.arange(samples + 1, dtype=np.int64) * sequence
    # The document that holds a token is the first that ends behind it; empty ones hold none.
    position = np.searchsorted(ends, starts, side="right")
    offset = starts - (ends - sizes[order])[position]
    position[0], offset[0] = 0, 0  # even where the first document is empty
    index = np.stack([position, offset], axis=1)
    return index if order.size > np.iinfo(np.int32).max else index.astype(np.int32)


def shuffle_index(
    separate: int, total: int, seed: int, megatron: bool, drawn: Sequence[int] = ()
) -> NDArray[np.uint32] | NDArray[np.int64]:
    """The plain twin of :func:`recipe_index.shuffle_index`."""
    total = integer("total", total, 0, MOST_ENTRIES)
    separate = integer("separate", separate, 0, total)
    seed = integer("seed", seed, 0, MOST_SEED)
    lengths = [integer("drawn", length, 0, MOST_ORDERED) for length in drawn]
    order: NDArray[Any] = np.arange(total, dtype=np.int64 if total >= np.iinfo(np.uint32).max - 1 else np.uint32)
    if megatron:
        state = np.random.RandomState(seed)
        for length in lengths:
            state.shuffle(np.empty(length, dtype=np.int8))
        state.shuffle(order[:separate])
        state.shuffle(order[separate:])
    else:
        fast_shuffle(order[:separate], seed, SAMPLES)
        fast_shuffle(order[separate:], seed, LAST_SAMPLES)
    return order


def blending_index(weights: NDArray[np.float64], samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """The plain twin of :func:`recipe_index.blending_index`."""
    weights = array("weights", weights, (np.float64,))
    samples = integer("samples", samples, 0, MOST_ENTRIES)
    not_empty("weights", weights)
    if weights.size > np.iinfo(np.int16).max:
        raise ValueError(f"weights: expected at most {np.iinfo(np.int16).max} entries, got {weights.size}")
    wrong = np.flatnonzero(~((weights >= 0) & np.isfinite(weights)))
    if wrong.size:
        raise ValueError(f"weights: expected finite numbers that are not negative; the one at index {wrong[0]} is not")
    if not weights.any():
        raise ValueError("weights: expected at least one above 0")
    datasets = np.empty(samples, dtype=np.int16)
    numbers = np.empty(samples, dtype=np.int64)
    taken = np.zeros(weights.size, dtype=np.int64)
    with np.errstate(over="ignore"):
        for sample in range(samples):
            dataset = np.argmax(weights * max(float(sample), 1.0) - taken)
            datasets[sample], numbers[sample] = dataset, taken[dataset]
            taken[dataset] += 1
    return datasets, numbers


def gather(
    tokens: NDArray[np.uint16] | NDArray[np.int32],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int32],
    order: NDArray[np.int32],
    samples_index: NDArray[np.int32] | NDArray[np.int64],
    which: NDArray[np.int64],
    sequence: int,
    limit: int,
) -> NDArray[np.int64]:
    """The plain twin of :func:`recipe_index.gather`."""
    tokens = array("tokens", tokens, (np.uint16, np.int32))
    starts = array("starts", starts, (np.int64,))
    sizes = array("sizes", sizes, (np.int32,))
    order = array("order", order, (np.int32,))
    samples_index = array("samples_index", samples_index, (np.int32, np.int64), dimensions=2)
    which = array("which", which, (np.int64,))
    sequence = integer("sequence", sequence, 1, MOST_SEQUENCE)
    limit = integer("limit", limit, 1, np.iinfo(np.int64).max)
    if starts.size != sizes.size:
        raise ValueError(f"starts: expected {sizes.size} entries, as many as sizes has, got {starts.size}")
    if samples_index.shape[0] < 1 or samples_index.shape[1] != 2:
        raise ValueError(f"samples_index: expected shape [samples + 1, 2], got {list(samples_index.shape)}")
    if which.size > MOST_ENTRIES // (sequence + 1):
        raise ValueError(f"which: {which.size} samples of {sequence} tokens are too many")
    indices("which", which, samples_index.shape[0] - 1)
    batch = np.empty((which.size, sequence + 1), dtype=np.int64)
    for row, sample in zip(batch, which.tolist(), strict=True):
        position, offset = samples_index[sample].tolist()
        _gather_one(row, tokens, starts, sizes, order, sample, position, offset, limit)
    return batch


def _gather_one(
    row: NDArray[np.int64],
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int32],
    order: NDArray[np.int32],
    sample: int,
    position: int,
    offset: int,
    limit: int,
) -> None:
    if position < 0 or offset < 0:
        raise ValueError(f"samples_index: sample {sample} starts at position {position}, offset {offset}")
    filled = 0
    while filled < row.size:
        if position >= order.size:
            raise ValueError(
                f"samples_index: sample {sample} gets {filled} of its {row.size} tokens before the order ends"
            )
        number = int(order[position])
        if not 0 <= number < sizes.size:
            raise ValueError(f"order: expected indices from 0 to below {sizes.size}, got {number} at index {position}")
        start, size = int(starts[number]), int(sizes[number])
        if size < 0 or start < 0 or start + size > tokens.size:
            raise ValueError(f"starts: sequence {number} has {size} tokens from {start} on, the file has {tokens.size}")
        if offset > size:
            raise ValueError(
                f"samples_index: sample {sample} starts at offset {offset} of sequence {number}, "
                f"which has {size} tokens"
            )
        taken = min(size - offset, row.size - filled)
        ids = tokens[start + offset : start + offset + taken].astype(np.int64)
        wrong = np.flatnonzero((ids < 0) | (ids >= limit))
        if wrong.size:
            raise ValueError(
                f"sample {sample}: sequence {number} has token id {ids[wrong[0]]} at position {offset + wrong[0]}, "
                f"expected from 0 to below {limit}"
            )
        row[filled : filled + taken] = ids
        filled, position, offset = filled + taken, position + 1, 0
