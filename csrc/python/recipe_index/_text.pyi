from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

class Pieces:
    """A tokenizer that splits texts into words, called once for each different piece of text.

    Texts are cut into pieces, and pieces that were met before are looked up.

    The cuts lie where no word of the tokenizer may lie across:

    - before a space with a character other than white space on either side of it: such tokenizers take a space only as
      the first character of a word, or in a run of white space, from which they leave the last space to the word after
      it;
    - between an ASCII letter or digit and a line end or one of ``, . ; : ! ? ) ( " -``: no word goes on with these.
      ASCII on both sides, so that nothing depends on the version of Unicode that a tokenizer knows.

    Args:
        fallback: gives the ids of texts: the tokenizer.
    """
    def __init__(self, fallback: Callable[[list[str]], list[list[int]]]) -> None: ...
    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids of ``texts``, one behind the other, and how many belong to each: ``[tokens]``, ``[texts]``."""
