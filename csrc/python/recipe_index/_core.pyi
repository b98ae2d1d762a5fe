from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

def parse_idx(data: NDArray[np.uint8]) -> tuple[int, NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """The fields of :class:`recipe_index.Idx`; ``data`` as for :func:`recipe_index.parse_idx`."""

def document_order(
    documents: NDArray[np.int32], epochs: int, seed: int, separate_last_epoch: bool, megatron: bool
) -> NDArray[np.int32]:
    """Document order of several epochs, shuffled (``_build_document_index`` of megatron-core).

    Args:
        documents: document numbers, not negative: ``[documents]``.
        epochs: repetitions of each document, at least 1.
        seed: from 0 to 2**32 - 1.
        separate_last_epoch: shuffle the last epoch separately, and append it to the others.
        megatron: shuffle as NumPy's ``RandomState(seed)`` does.

    Returns:
        ``[epochs * documents]``
    """

def sample_index(
    sizes: NDArray[np.int32], order: NDArray[np.int32], sequence: int, samples: int
) -> NDArray[np.int32] | NDArray[np.int64]:
    """Start of each sample (``build_sample_idx`` of megatron-core).

    A sample has ``sequence + 1`` tokens, and overlaps the next one by one token: sample i starts at token
    ``i * sequence`` of the concatenated documents.

    Args:
        sizes: tokens of each document of the file: ``[file's documents]``.
        order: documents in reading order: ``[entries]``.
        sequence: tokens from one sample to the next.
        samples: number of samples, which ``order`` must contain completely.

    Returns:
        ``[samples + 1, 2]``: position in ``order``, and offset into that document; int32 unless a number could exceed
        its range.
    """

def shuffle_index(
    separate: int, total: int, seed: int, megatron: bool, drawn: Sequence[int] = ()
) -> NDArray[np.uint32] | NDArray[np.int64]:
    """The numbers below ``separate`` shuffled, then those up to ``total`` (``_build_shuffle_index``).

    Args:
        separate: end of the first part.
        total: end of the second part, which is empty if both are equal.
        seed: from 0 to 2**32 - 1.
        megatron: shuffle as NumPy's ``RandomState(seed)`` does.
        drawn: with ``megatron``, the lengths that the same generator has shuffled before. Megatron shuffles the
            documents before the samples: ``[epochs * documents]``, or, with a separate last epoch,
            ``[(epochs - 1) * documents, documents]``.

    Returns:
        ``[total]``; uint32 unless a number could exceed its range.
    """

def blending_index(weights: NDArray[np.float64], samples: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """Dataset of each sample in a blend of several (``build_blending_indices`` of megatron-core).

    Sample i comes from the dataset that is furthest behind ``weight * i``, the first one in a tie.

    Args:
        weights: weight of each dataset, adding up to 1: ``[datasets]``.
        samples: number of samples.

    Returns:
        dataset of each sample, ``[samples]``, and its number in that dataset, ``[samples]``.
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
        tokens: the whole .bin file: ``[tokens]``.
        starts: first token of each document of the file: ``[file's documents]``.
        sizes: tokens of each document of the file: ``[file's documents]``.
        order: the argument ``order`` of :func:`sample_index`: ``[entries]``.
        samples_index: the result of :func:`sample_index`: ``[samples + 1, 2]``.
        which: numbers of the samples: ``[batch]``.
        sequence: the argument ``sequence`` of :func:`sample_index`.
        limit: size of the vocabulary, the upper bound of ids.

    Returns:
        ``[batch, sequence + 1]``

    Raises:
        ValueError: a token id is out of range (the message names sample, sequence, position and id), or the arrays do
            not match. Only the entries that the samples need are checked.
        OSError: an array is a memory map whose file was truncated while it was read, or whose disk failed.
    """
