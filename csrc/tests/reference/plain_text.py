"""The class of :mod:`recipe_index.text` in plain Python: what it does, and what the compiled one is tested against."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recipe_index.text import PIECES


class Pieces:
    """A tokenizer that parts texts into words, asked once for each piece that a text is cut into.

    The cuts lie where no word of the tokenizer may lie across:

    - before a space with a character other than white space on either side of it: such tokenizers take a space only as
      the first character of a word, or in a run of white space, from which they leave the last space to the word after
      it;
    - between an ASCII letter or digit and a line end or one of ``, . ; : ! ? ) ( " -``: no word goes on with these.
      ASCII on both sides, so that nothing depends on the version of Unicode that a tokenizer knows.

    Args:
        fallback: gives the ids of texts: the tokenizer.
    """

    def __init__(self, fallback: Callable[[list[str]], list[list[int]]]) -> None:
        self._fallback = fallback

    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids of ``texts``, one behind the other, and how many belong to each: ``[tokens]``, ``[texts]``."""
        found = [[number for ids in self._fallback(PIECES.findall(text)) for number in ids] for text in texts]
        ids = np.array([number for one in found for number in one], dtype=np.int32)
        return ids, np.array([len(one) for one in found], dtype=np.int32)
