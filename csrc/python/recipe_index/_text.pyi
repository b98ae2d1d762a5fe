from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

class Pieces:
    """A cache for a tokenizer that splits texts into words: each distinct piece of text is tokenised once.

    Texts are cut into pieces, and known pieces are looked up.

    Cuts fall where no word of the tokenizer crosses:

    - before a space with a character other than white space on either side of it: such tokenizers take a space only as
      the first character of a word, or in a run of white space whose last space belongs to the next word;
    - between an ASCII letter or digit and a line end or one of ``, . ; : ! ? ) ( " -``: these continue no word.
      Both sides are ASCII, so that the cuts do not depend on the tokenizer's version of Unicode.

    Args:
        fallback: the tokenizer: returns the ids of texts.
    """
    def __init__(self, fallback: Callable[[list[str]], list[list[int]]]) -> None: ...
    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Concatenated token ids of ``texts``, ``[tokens]``, and their number per text, ``[texts]``."""
