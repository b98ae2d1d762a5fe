from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

PAIR: np.dtype[np.void]

class WordPiece:
    """BERT's tokenizer: words and punctuation, then the longest pieces of the vocabulary.

    Args:
        pieces: the vocabulary; a piece that continues a word starts with ``##``.
        ids: the id of each piece.
        lowercase: convert letters to lower case.
        unknown: the id of a word that has no pieces.
        special: special tokens, matched anywhere in a text; each starts with ``[``.
        fallback: returns the ids of texts that are not ASCII, or contain a special token.
    """
    def __init__(
        self,
        pieces: Sequence[str],
        ids: NDArray[np.int32],
        lowercase: bool,
        unknown: int,
        special: Sequence[str],
        fallback: Callable[[list[str]], list[list[int]]],
    ) -> None: ...
    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Concatenated token ids of ``texts``, ``[tokens]``, and their number per text, ``[texts]``."""

def make_pairs(
    sentences: NDArray[np.int64],
    documents: NDArray[np.int64],
    pool: NDArray[np.int64],
    first: int,
    last: int,
    sequence: int,
    short_probability: float,
    seed: int,
    round: int,
) -> NDArray[np.void]:
    """Pairs of segments, by the published algorithm (Devlin et al., 2018, ``create_pretraining_data.py``).

    Sentences of a document are collected up to a target length. Some of them are the first segment; the second is the
    rest of them or, for half of the pairs, comes from another document, and the rest is used for the next pair.

    Args:
        sentences: the token where each sentence starts, one more at the end.
        documents: the sentence where each document starts, one more at the end.
        pool: the documents in use, at least two; pairs are made from those from ``first`` to below ``last``.
        sequence: tokens of a sample, of which three are special.
        short_probability: fraction of the documents that get a random shorter target.
        seed: with ``round`` and the document, determines every random number.
        round: number of the pass over the documents.

    Returns:
        entries of the type ``PAIR``.
    """

def copy_segments(
    tokens: NDArray[np.uint16] | NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint16] | NDArray[np.int32]:
    """Concatenate segments: ``lengths[i]`` tokens from ``starts[i]`` on, for each i.

    Args:
        tokens: uint16 or int32, may be a memory map.
        starts: ``[segments]``.
        lengths: ``[segments]``.
    """

def fill_rows(
    tokens: NDArray[np.uint16] | NDArray[np.int32],
    pairs: NDArray[np.void],
    kinds: NDArray[np.uint8],
    cls: int,
    sep: int,
    mask: int,
    pad: int,
    sequence: int,
    most: int,
    probability: float,
    whole_words: bool,
) -> tuple[
    NDArray[np.int32], NDArray[np.int8], NDArray[np.int8], NDArray[np.int32], NDArray[np.int32], NDArray[np.int8]
]:
    """Rows of samples with masked tokens: of those chosen, 80 % become [MASK], 10 % a random token, 10 % stay.

    Args:
        tokens: the token store into which the pairs point.
        pairs: entries of the type ``PAIR``.
        kinds: kind of each id: ``SPECIAL``, ``CONTINUATION`` or 0.
        cls, sep, mask, pad: ids of the special tokens.
        sequence: tokens of a row.
        most: most predictions of a row.
        probability: fraction of a sample's tokens that are predicted.
        whole_words: predict all pieces of a word, or none.

    Returns:
        ``input_ids``, ``input_mask``, ``segment_ids`` ``[pairs, sequence]``; ``masked_lm_positions``, ascending and
        padded with zeros, ``masked_lm_ids`` ``[pairs, most]``; ``next_sentence_labels`` ``[pairs]``: 1 for a random
        next.
    """

def pack(
    lengths: NDArray[np.int32], capacity: int, most: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pack sequences into few rows, each sequence into one row.

    Two methods are tried on the histogram of the lengths: best-fit decreasing; and, if that leaves more than 0.05 %
    free, the linear program of the cutting-stock problem, rounded down to whole rows, with best fit for the rest.

    Args:
        lengths: tokens of each sequence, from 1 to ``capacity``.
        capacity: tokens of a row.
        most: most sequences in a row; 0: as many as fit.
        seed: seed of the order of the rows.

    Returns:
        the sequences row by row, ``[sequences]``, and the start of each row among them, ``[rows + 1]``.
    """

def pack_rows(
    input_ids: NDArray[np.int32],
    segment_ids: NDArray[np.int8],
    lengths: NDArray[np.int32],
    positions: NDArray[np.int32],
    ids: NDArray[np.int32],
    next_sentence: NDArray[np.int8],
    order: NDArray[np.int64],
    rows: NDArray[np.int64],
    capacity: int,
    predictions: int,
    slots: int,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int8],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[np.int8],
    NDArray[np.int32],
]:
    """Rows in Habana's layout: concatenated samples.

    Args:
        input_ids, segment_ids: ``[samples, sequence]``.
        lengths: tokens of each sample without padding.
        positions, ids: of the predictions, ``[samples, most]``; position 0 ends them.
        next_sentence: ``[samples]``.
        order, rows: the samples of each row, as returned by ``pack``; ``rows`` may be a slice of its second result.
        capacity: tokens of a row.
        predictions: capacity for predictions in a row.
        slots: capacity for samples in a row.

    Returns:
        ``input_ids``, ``input_mask`` (numbers of the samples from 1), ``segment_ids``, ``positions`` (from 0 in each
        sample) ``[rows, capacity]``; ``masked_lm_positions``, ``masked_lm_ids`` ``[rows, predictions]``;
        ``next_sentence_positions``, ``_labels``, ``_weights`` ``[rows, slots]``.
    """
