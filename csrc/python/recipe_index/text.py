"""A cache for tokenizers that split texts into words.

Compiled; the stub ``_text.pyi`` documents every argument. Bad input raises TypeError.
"""

from __future__ import annotations

import re

from recipe_index._text import Pieces

__all__ = ["PIECES", "Pieces"]

PIECES = re.compile(
    r"""\ ?[A-Za-z0-9]+(?=[\ \n,.;:!?)"(\-]|\Z)  # most pieces: a word
    |.(?:.*?(?:(?<=[A-Za-z0-9])(?=[\n,.;:!?)"(\-])|(?<=\S)(?=\ )|(?=\ \S)|\Z))  # anything, up to the next cut""",
    re.DOTALL | re.VERBOSE,
)
"""Pattern of a piece of text in :class:`Pieces`."""
