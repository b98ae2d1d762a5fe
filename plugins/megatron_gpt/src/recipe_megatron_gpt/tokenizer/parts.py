"""Long texts in parts that no token crosses: what a tokenizer holds of a text is many times as large as the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

LONG = 1_000_000
"""Characters from which on a text is cut, and texts are not encoded together."""
_IDEOGRAPHS = "\u3041-\u3093\u30a1-\u30f6\u4e00-\u9fa5\uac00-\ud7a3"
_STOPS = "\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
_CUT = re.compile(
    rf"""(?<=\S)(?=\ \S)  # before a word
    |(?<=[A-Za-z0-9{_IDEOGRAPHS}])(?=[\n,.;:!?)"(\-{_STOPS}])  # after a word: before what no word goes on with
    |(?<=\S\n)(?=[^\s/])  # before a line; some tokenizers take a slash to the line end before it""",
    re.VERBOSE,
)
"""Where no word of a tokenizer lies across, if it is one of those that :func:`encoders.splits_at_words` knows.

The characters are such as every version of Unicode takes for the same: letters, signs or white space.
"""


def ends_white_space(tokens: Collection[str]) -> Callable[[str], bool]:
    """Tells of a text if one of ``tokens`` stands in it after white space and a space.

    :class:`recipe_index.text.Pieces` would part the two as before any other word. But a tokenizer looks for such tokens
    before it splits a text, and takes the white space that then ends a stretch of text for one word.
    """
    if not tokens:
        return lambda _: False
    starts = {f" {token[0]}" for token in tokens}  # looked for first: it is so much faster
    pattern = re.compile(rf"\s (?:{'|'.join(map(re.escape, tokens))})")
    return lambda text: any(start in text for start in starts) and pattern.search(text) is not None


def can_be_cut(tokens: Iterable[str]) -> bool:
    """True where none of ``tokens``, which a tokenizer looks for in a text before it splits it, would be cut itself."""
    return not any(_CUT.search(token) for token in tokens)


def is_long(text: str) -> bool:
    """True where ``text`` is longer than a part."""
    return len(text) > LONG


def parts(text: str) -> Iterator[str]:
    """Parts of at least :data:`LONG` characters, each up to the next place for a cut; the last one has the rest."""
    start = 0
    while len(text) - start > LONG:
        cut = _CUT.search(text, start + LONG)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:] if start else text


def together(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of about :data:`LONG` characters; a longer one is a list of its own."""
    parts: list[str] = []
    length = 0
    for text in texts:
        if parts and length + len(text) > LONG:
            yield parts
            parts, length = [], 0
        parts.append(text)
        length += len(text)
    if parts:
        yield parts
