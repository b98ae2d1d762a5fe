"""What makes tokenizers fast that part a text into words first.

Compiled; :mod:`recipe_index.plain_text` has the same in Python, and says what it does. Bad input raises TypeError.
"""

from __future__ import annotations

from recipe_index._text import Pieces

__all__ = ["Pieces"]
