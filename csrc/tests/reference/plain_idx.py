"""The reader of .idx files in NumPy."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_index.idx import Idx
from reference.plain_checks import array

MAGIC = b"MMIDIDX\x00\x00"
HEADER = 34
"""Bytes: magic 9, version 8, token type 1, number of sequences 8, number of document boundaries 8."""
WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 8: 2}
"""Bytes of a token of each type. Codes 6 and 7 are floating point, which no token is."""


def parse_idx(data: NDArray[np.uint8]) -> Idx:
    """The plain twin of :func:`recipe_index.parse_idx`."""
    data = np.asarray(array("data", data, (np.uint8,)))
    if data.size < HEADER:
        raise ValueError(f"expected a header of {HEADER} bytes, got {data.size} bytes")
    if data[:9].tobytes() != MAGIC:
        raise ValueError("expected an .idx file, which begins with MMIDIDX")
    if (version := _number(data, 9)) != 1:
        raise ValueError(f"expected version 1, got {version}")
    code = int(data[17])
    if code not in WIDTHS:
        raise ValueError(f"expected a token type of 1 to 5 or 8, got {code}")
    sequences, boundaries = _number(data, 18), _number(data, 26)
    if boundaries < 1:
        raise ValueError("expected at least one document boundary, got none")
    wanted = HEADER + 12 * sequences + 8 * boundaries
    if max(sequences, boundaries) > data.size or data.size not in (wanted, wanted + sequences):
        raise ValueError(
            f"{sequences} sequences and {boundaries} document boundaries do not make a file of {data.size} bytes"
        )
    pointers_at, documents_at = HEADER + 4 * sequences, HEADER + 12 * sequences
    sizes = data[HEADER:pointers_at].view("<i4")
    pointers = data[pointers_at:documents_at].view("<i8")
    documents = data[documents_at:wanted].view("<i8")
    _check_sequences(sizes, pointers, WIDTHS[code])
    _check_documents(documents, sequences)
    return Idx(code, sizes, pointers, documents)


def _number(data: NDArray[np.uint8], at: int) -> int:
    return int(data[at : at + 8].view("<u8")[0])


def _check_sequences(sizes: NDArray[np.int32], pointers: NDArray[np.int64], width: int) -> None:
    expected = 0
    for number, (size, pointer) in enumerate(zip(sizes.tolist(), pointers.tolist(), strict=True)):
        if size < 0:
            raise ValueError(f"sequence {number}: expected no negative size, got {size}")
        if pointer != expected:
            raise ValueError(f"sequence {number}: expected to start at byte {expected}, got {pointer}")
        expected += size * width


def _check_documents(documents: NDArray[Any], sequences: int) -> None:
    bounds = documents.tolist()
    if bounds[0] != 0:
        raise ValueError(f"documents: expected the first to start at sequence 0, got {bounds[0]}")
    for number, (start, end) in enumerate(pairwise(bounds)):
        if end < start:
            raise ValueError(f"documents: document {number} ends at sequence {end}, before its start {start}")
    if bounds[-1] != sequences:
        raise ValueError(f"documents: expected the last to end at sequence {sequences}, got {bounds[-1]}")
