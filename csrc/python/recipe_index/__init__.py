"""Indices over token files: document order, samples, blending, and batches read straight from the memory map.

The functions are compiled, check every argument and work without the interpreter lock; ``reference.plain`` has
the same functions in NumPy. Bad input raises ValueError, something that is no integer where one belongs TypeError.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recipe_index import _core
from recipe_index._core import blending_index, document_order, gather, sample_index, shuffle_index
from recipe_index.idx import Idx

__all__ = ["Idx", "blending_index", "document_order", "gather", "parse_idx", "sample_index", "shuffle_index"]
__version__ = "0.1.0"


def parse_idx(data: NDArray[np.uint8]) -> Idx:
    """Check all of an .idx file and give views of its parts; see :func:`reference.plain.parse_idx`."""
    return Idx(*_core.parse_idx(data))
