from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

PAIR: np.dtype[np.void]

class WordPiece:
    def __init__(
        self,
        pieces: Sequence[str],
        ids: NDArray[np.int32],
        lowercase: bool,
        unknown: int,
        special: Sequence[str],
        fallback: Callable[[list[str]], list[list[int]]],
    ) -> None: ...
    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]: ...

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
) -> NDArray[np.void]: ...
def copy_segments(
    tokens: NDArray[np.uint16] | NDArray[np.int32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint16] | NDArray[np.int32]: ...
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
]: ...
def pack(
    lengths: NDArray[np.int32], capacity: int, most: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
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
]: ...
