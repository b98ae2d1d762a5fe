"""What makes tokenizers fast that part a text into words first.

Compiled; :mod:`reference.plain_text` has the same in Python, and says what it does. Bad input raises TypeError.
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
"""Where texts are cut: the pieces that :class:`Pieces` looks for, as a pattern for one piece."""
