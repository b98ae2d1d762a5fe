"""Fast data for BERT's pre-training: WordPiece, pairs of segments, masking, and packing into rows.

The functions are compiled and check every argument; the stub ``_bert.pyi`` documents every argument. Bad input raises
ValueError.
"""

from __future__ import annotations

from recipe_index._bert import PAIR, WordPiece, copy_segments, fill_rows, make_pairs, pack, pack_rows

CONTINUATION = 2
"""Kind of a token id that continues the word of the token before it."""
SPECIAL = 1
"""Kind of a token id that is never predicted, and never used as a random replacement."""

__all__ = [
    "CONTINUATION",
    "PAIR",
    "SPECIAL",
    "WordPiece",
    "copy_segments",
    "fill_rows",
    "make_pairs",
    "pack",
    "pack_rows",
]
