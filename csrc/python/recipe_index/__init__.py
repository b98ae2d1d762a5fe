"""Indices over token files: document order, samples, blending, and batches read straight from the memory map.

The functions are compiled, check every argument and release the interpreter lock. The stub ``_core.pyi``, which editors
and type checkers read, documents every argument. Bad input raises ValueError, something that is no integer where one
belongs TypeError.

:mod:`recipe_index.bert`: data for BERT's pre-training. :mod:`recipe_index.text`: a cache for tokenizers.
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
    """Check all of a Megatron .idx file, version 1, and return views of its parts.

    Sequences must follow each other without a gap, as all writers arrange them. Mode bytes after the documents, in
    Megatron's multimodal files, are accepted and ignored.

    Args:
        data: the whole file: ``[bytes]``.

    Raises:
        ValueError: the file is not an .idx file, has another version or length, or its numbers contradict each other.
        OSError: the file is mapped and was truncated while it was read, or its disk failed.
    """
    return Idx(*_core.parse_idx(data))
