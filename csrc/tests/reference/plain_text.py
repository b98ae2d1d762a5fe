"""The plain twin of :class:`recipe_index.text.Pieces`, in Python, for tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recipe_index.text import PIECES


class Pieces:
    """The plain twin of :class:`recipe_index.text.Pieces`."""

    def __init__(self, fallback: Callable[[list[str]], list[list[int]]]) -> None:
        self._fallback = fallback

    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids of ``texts``, one behind the other, and how many belong to each: ``[tokens]``, ``[texts]``."""
        found = [[number for ids in self._fallback(PIECES.findall(text)) for number in ids] for text in texts]
        ids = np.array([number for one in found for number in one], dtype=np.int32)
        return ids, np.array([len(one) for one in found], dtype=np.int32)
