from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def parse_idx(data: NDArray[np.uint8]) -> tuple[int, NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """The fields of :class:`recipe_index.Idx`; ``data`` is as :func:`recipe_index.parse_idx` takes it."""

def document_order(
    documents: NDArray[np.int32], epochs: int, seed: int, separate_last_epoch: bool, megatron: bool
) -> NDArray[np.int32]:
    """Document order of several epochs, shuffled (``_build_document_index`` of megatron-core).

    Args:
        documents: document numbers, none negative: ``[documents]``.
        epochs: times that each document comes, at least 1.
        seed: from 0 to 2**32 - 1.
        separate_last_epoch: shuffle the last epoch apart from the others, and put it behind them.
        megatron: shuffle as NumPy's ``RandomState(seed)`` does.

    Returns:
        ``[epochs * documents]``
    """

def sample_index(
    sizes: NDArray[np.int32], order: NDArray[np.int32], sequence: int, samples: int
) -> NDArray[np.int32] | NDArray[np.int64]:
    """Start of each sample (``build_sample_idx`` of megatron-core).

    A sample has ``sequence + 1`` tokens, of which the next one starts with the last: sample i starts at token
    ``i * sequence`` of the documents laid end to end.

    Args:
        sizes: tokens of each document of the file: ``[file's documents]``.
        order: documents in the order in which they are read: ``[entries]``.
        sequence: tokens from one sample to the next.
        samples: number of samples, which ``order`` must hold in full.

    Returns:
        ``[samples + 1, 2]``: position in ``order``, and offset into that document; int32 unless a number could be too
        large for that.
    """

def shuffle_index(
    separate: int, total: int, seed: int, megatron: bool, drawn: Sequence[int] = ()
) -> NDArray[np.uint32] | NDArray[np.int64]:
    """The numbers below ``separate`` shuffled, then those up to ``total`` (``_build_shuffle_index``).

    Args:
        separate: end of the first part.
        total: end of the second part, which is empty where both are equal.
        seed: from 0 to 2**32 - 1.
        megatron: shuffle as NumPy's ``RandomState(seed)`` does.
        drawn: with ``megatron``, the lengths that the same generator shuffled before. Megatron shuffles first the
            documents and then the samples: ``[epochs * documents]``, or, where the last epoch is separate,
            ``[(epochs - 1) * documents, documents]``.

    Returns:
        ``[total]``; uint32 unless a number could be too large for that.
    """

def blending_index(weights: NDArray[np.float64], samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Dataset of each sample in a blend of several (``build_blending_indices`` of megatron-core).

    Sample i comes from the dataset that is furthest behind ``weight * i``, the first of them where several are.

    Args:
        weights: proportion of each dataset, adding up to 1: ``[datasets]``.
        samples: number of samples.

    Returns:
        dataset ``[samples]``, and number of the sample in that dataset ``[samples]``.
    """

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
    """Token ids of some samples, read from a memory map.

    Args:
        tokens: all of the .bin file: ``[tokens]``.
        starts: first token of each document of the file: ``[file's documents]``.
        sizes: tokens of each document of the file: ``[file's documents]``.
        order: the argument ``order`` of :func:`sample_index`: ``[entries]``.
        samples_index: the result of :func:`sample_index`: ``[samples + 1, 2]``.
        which: numbers of the samples: ``[batch]``.
        sequence: the argument ``sequence`` of :func:`sample_index`.
        limit: size of the vocabulary: ids are from 0 to below it.

    Returns:
        ``[batch, sequence + 1]``

    Raises:
        ValueError: a token id is out of range (it names the sample, the sequence, the position in it, and the id), or
            the arrays do not fit each other. Only the entries that the samples need are checked.
        OSError: an array is a memory map, and its file was cut while it was read, or its disk failed.
    """
