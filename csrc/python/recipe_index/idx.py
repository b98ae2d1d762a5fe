"""The parts of a Megatron .idx file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Idx(NamedTuple):
    """The parts of an .idx file, as views of its bytes, unaligned because the header has 34 bytes."""

    dtype_code: int
    """Token type: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16."""
    sizes: NDArray[np.int32]
    """Tokens of each sequence: ``[sequences]``."""
    pointers: NDArray[np.int64]
    """Byte offset of each sequence in the .bin file: ``[sequences]``."""
    documents: NDArray[np.int64]
    """First sequence of each document, then the number of sequences: ``[documents + 1]``."""
