"""Long texts in parts that no token crosses, because a tokenizer needs many times the memory of a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator

LONG = 1_000_000
"""Characters above which a text is cut, and most characters that are encoded together."""
_IDEOGRAPHS = "\u3041-\u3093\u30a1-\u30f6\u4e00-\u9fa5\uac00-\ud7a3"
_STOPS = "\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f"
_CUT = re.compile(
    rf"""(?<=\S)(?=\ \S)  # before a word
    |(?<=[A-Za-z0-9{_IDEOGRAPHS}])(?=[\n,.;:!?)"(\-{_STOPS}])  # after a word: before characters that continue no word
    |(?<=\S\n)(?=[^\s/])  # before a line; some tokenizers take a slash to the line end before it""",
    re.VERBOSE,
)
"""Positions that no word of a tokenizer crosses, if :func:`encoders.splits_at_words` knows it.

Every version of Unicode gives these characters the same class: letters, signs or white space.
"""


def ends_white_space(tokens: Collection[str]) -> Callable[[str], bool]:
    """A predicate of texts: True if one of ``tokens`` follows white space and a space.

    :class:`recipe_index.text.Pieces` would separate the two, as before any other word. A tokenizer matches such tokens
    before it splits a text, and makes one word of the white space that then ends a stretch of text.
    """
    if not tokens:
        return lambda _: False
    starts = {f" {token[0]}" for token in tokens}  # a faster first test
    pattern = re.compile(rf"\s (?:{'|'.join(map(re.escape, tokens))})")
    return lambda text: any(start in text for start in starts) and pattern.search(text) is not None


def can_be_cut(tokens: Iterable[str]) -> bool:
    """True if no cut falls inside ``tokens``, which a tokenizer matches before it splits a text."""
    return not any(_CUT.search(token) for token in tokens)


def is_long(text: str) -> bool:
    """True if ``text`` is longer than :data:`LONG`."""
    return len(text) > LONG


def parts(text: str) -> Iterator[str]:
    """Parts of at least :data:`LONG` characters, each up to the next possible cut; the last one has the rest."""
    start = 0
    while len(text) - start > LONG:
        cut = _CUT.search(text, start + LONG)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:] if start else text


def grouped(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts in lists of up to :data:`LONG` characters; a longer text is a list of its own."""
    group: list[str] = []
    length = 0
    for text in texts:
        if group and length + len(text) > LONG:
            yield group
            group, length = [], 0
        group.append(text)
        length += len(text)
    if group:
        yield group
