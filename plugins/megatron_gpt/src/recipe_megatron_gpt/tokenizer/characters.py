"""The characters that gigatoken and tokenizers take for different things.

Tokenizers split a text into words by what characters are: letters, digits, white space. Each library has that from the
Unicode tables of its own age, so characters that one of them does not know yet part words in one and not in the other.
Which characters these are is found out by trying them, once for each way to split and each pair of versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from recipe_megatron_gpt.tokenizer.cache import key_of, recall, remember
from recipe_megatron_gpt.tokenizer.rank_file import CHARACTERS

Ids = Callable[[list[str]], list[list[int]]]
"""Token ids of texts."""

_NEIGHBOURS = b"zZ!9"
"""Neighbours that a character is tried beside: a splitter may join it with them."""
_BLOCK = 256
"""Characters that are tried when a text has one of them."""
_TOGETHER = 64
"""Blocks that are tried at a time, for the threads of a library; all 4,352 would take gigabytes."""
_USUAL = 512
"""Blocks that have characters of the texts of one data set, or fewer."""
_CODES = 0x110000
_ASCII = 0x80
_TABLE_FREE = {"Metaspace", "Prepend", "Replace"}
"""Parts of a tokenizer that look for given characters only."""


class Differing:
    """The characters that two libraries split differently.

    Args:
        probe: what :func:`differing` tries characters with; empty where no character can differ.
        one, other: the libraries: make a tokenizer of the content of a tokenizer.json.
    """

    def __init__(self, probe: str, one: Callable[[str], Ids], other: Callable[[str], Ids]) -> None:
        self._key = key_of("characters", probe)
        self._libraries = cache(lambda: (one(probe), other(probe)))
        self._alike = np.full(_CODES, not probe)
        """For each character, True once it was tried and found to be the same for both."""
        self._tried: set[int] = set()
        self._found: set[int] = set()
        self._kept = 0
        """Blocks that the cache knows."""

    def in_text(self, text: str) -> bool:
        """True where ``text``, which has no halves of surrogate pairs, holds one of them."""
        if text.isascii():
            return False
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        codes = codes[codes >= _ASCII]
        alike = self._alike[codes]
        if alike.all():
            return False
        unlike = codes[~alike]
        blocks = set(np.unique(unlike // _BLOCK).tolist())
        if blocks <= self._tried:
            return True
        self._try(blocks)
        return not self._alike[unlike].all()

    def _try(self, blocks: set[int]) -> None:
        """Find out about ``blocks`` what neither this process nor, by the cache, an earlier one has."""
        if kept := recall(self._key):
            self._learn(kept.facts["tried"], kept.facts["found"])
            self._kept = max(self._kept, len(kept.facts["tried"]))
        if missing := sorted(blocks - self._tried):
            self._learn(missing, list(_tried(missing, *self._libraries())))
            # A text of all characters has thousands of blocks: not each of them is worth writing a file.
            if len(self._tried) < _USUAL or len(self._tried) * 8 > self._kept * 9:
                remember(self._key, {"tried": sorted(self._tried), "found": sorted(self._found)})
                self._kept = len(self._tried)

    def _learn(self, tried: list[int], found: list[int]) -> None:
        for block in tried:
            self._alike[block * _BLOCK : (block + 1) * _BLOCK] = True
        self._alike[found] = False
        self._tried.update(tried)
        self._found.update(found)


def differing(content: str, one: Callable[[str], Ids], other: Callable[[str], Ids]) -> Differing | None:
    """The characters for which two libraries split texts differently, by a tokenizer.json with this content.

    Returns:
        None where that cannot be found out: the tokenizer is no byte-level one and knows kinds of characters.
    """
    tokenizer = json.loads(content)
    kinds = {kind for name in ("normalizer", "pre_tokenizer") for kind in _kinds(tokenizer[name])}
    if "ByteLevel" in kinds:
        return Differing(_probe(tokenizer), one, other)
    return Differing("", one, other) if kinds <= _TABLE_FREE else None


def _kinds(part: dict[str, Any] | None) -> Iterator[str]:
    """The types of a part of a tokenizer.json and of what it is composed of; a pattern counts as a type of its own."""
    if part is None:
        return
    inside = part.get("pretokenizers") or part.get("normalizers") if part["type"] == "Sequence" else None
    if inside is not None:
        for inner in inside:
            yield from _kinds(inner)
        return
    yield part["type"]
    if "Regex" in part.get("pattern", {}):
        yield "Regex"


def _probe(tokenizer: dict[str, Any]) -> str:
    """A tokenizer.json that splits a text as ``tokenizer`` does and shows where: what meets in a word is merged."""
    high = range(0x80, 0x100)
    pairs = [pair for near in _NEIGHBOURS for byte in high for pair in ((near, byte), (byte, near))]
    merges = [(CHARACTERS[first], CHARACTERS[second]) for first, second in pairs]
    tokens = [*(CHARACTERS[byte] for byte in range(0x100)), *(first + second for first, second in merges)]
    model = {"type": "BPE", "vocab": {token: n for n, token in enumerate(tokens)}, "merges": merges}
    return json.dumps({**tokenizer, "model": model, "added_tokens": [], "post_processor": None})


def _tried(blocks: list[int], one: Ids, other: Ids) -> Iterator[int]:
    """The characters of ``blocks`` that differ: first each block as a whole, then one by one in each that does."""
    for at in range(0, len(blocks), _TOGETHER):
        some = [range(block * _BLOCK, (block + 1) * _BLOCK) for block in blocks[at : at + _TOGETHER]]
        texts = ["".join(map(_tried_text, numbers)) for numbers in some]
        for numbers, mine, theirs in zip(some, one(texts), other(texts), strict=True):
            if mine != theirs:
                single = list(map(_tried_text, numbers))
                yield from (n for n, a, b in zip(numbers, one(single), other(single), strict=True) if a != b)


def _tried_text(number: int) -> str:
    """A character beside a small and a capital letter, signs (two, as one may belong to a word) and a digit."""
    return "z{0}Z!!{0}9".format(chr(number))
