"""The characters that gigatoken and tokenizers classify differently.

Tokenizers split a text into words by the classes of characters: letters, digits, white space. Each library has its own
version of the Unicode tables, so that newer characters separate words in one and not in the other. These characters are
found by trials, once for each splitter and pair of versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from recipe_megatron_gpt.tokenizer.cache import key_of, recall, remember

Ids = Callable[[list[str]], list[list[int]]]
"""Token ids of texts."""

_NEIGHBOURS = b"zZ!9"
"""Neighbours of a character in a trial: a splitter may join it with them."""
_BLOCK = 256
"""Characters in a block, which are tried together when a text has one of them."""
_TOGETHER = 64
"""Blocks per batch of trials, for the threads of a library; all 4,352 would take gigabytes."""
_USUAL = 512
"""Usual upper bound of the blocks in the texts of one data set."""
_CODES = 0x110000
_ASCII = 0x80
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_CHARACTERS = {number: chr(number) for number in _PRINTABLE} | {
    number: chr(256 + n) for n, number in enumerate(number for number in range(256) if number not in _PRINTABLE)
}
"""The character that represents a byte in byte-level tokens: itself if it is printable in Latin-1."""
_TABLE_FREE = {"Metaspace", "Prepend", "Replace"}
"""Components of a tokenizer that use no Unicode tables."""


class DifferingCharacters:
    """The characters that two libraries split differently.

    Args:
        probe: content of a tokenizer.json for the trials; empty if no character can differ.
        one, other: the two libraries, as functions that load the content of a tokenizer.json.
    """

    def __init__(self, probe: str, one: Callable[[str], Ids], other: Callable[[str], Ids]) -> None:
        self._key = key_of("characters", probe)
        self._libraries = cache(lambda: (one(probe), other(probe)))
        self._alike = np.full(_CODES, not probe)
        """True for each character that was tried and does not differ."""
        self._tried: set[int] = set()
        self._differing: set[int] = set()
        self._cached = 0
        """Blocks in the cache."""

    def in_text(self, text: str) -> bool:
        """True if ``text``, which has no lone surrogates, contains such a character."""
        if text.isascii():
            return False
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        codes = codes[codes >= _ASCII]
        alike = self._alike[codes]
        if alike.all():
            return False
        open_codes = codes[~alike]
        blocks = set(np.unique(open_codes // _BLOCK).tolist())
        if blocks <= self._tried:
            return True
        self._try(blocks)
        return not self._alike[open_codes].all()

    def _try(self, blocks: set[int]) -> None:
        if entry := recall(self._key):
            self._learn(entry["tried"], entry["found"])
            self._cached = max(self._cached, len(entry["tried"]))
        if missing := sorted(blocks - self._tried):
            self._learn(missing, list(_find_differing(missing, *self._libraries())))
            # A text of all characters has thousands of blocks, too many for a file after each.
            if len(self._tried) < _USUAL or len(self._tried) * 8 > self._cached * 9:
                remember(self._key, {"tried": sorted(self._tried), "found": sorted(self._differing)})
                self._cached = len(self._tried)

    def _learn(self, tried: list[int], characters: list[int]) -> None:
        for block in tried:
            self._alike[block * _BLOCK : (block + 1) * _BLOCK] = True
        self._alike[characters] = False
        self._tried.update(tried)
        self._differing.update(characters)


def differing_characters(
    content: str, one: Callable[[str], Ids], other: Callable[[str], Ids]
) -> DifferingCharacters | None:
    """The characters for which two libraries split texts differently, with the tokenizer.json ``content``.

    Returns:
        None if trials cannot tell: the tokenizer is not byte-level, and uses classes of characters.
    """
    tokenizer = json.loads(content)
    kinds = {kind for name in ("normalizer", "pre_tokenizer") for kind in _kinds(tokenizer[name])}
    if "ByteLevel" in kinds:
        return DifferingCharacters(_probe(tokenizer), one, other)
    return DifferingCharacters("", one, other) if kinds <= _TABLE_FREE else None


def _kinds(part: dict[str, Any] | None) -> Iterator[str]:
    # types of a component and its parts; a pattern counts as a type
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
    # Splits as `tokenizer` does, and merges a character with its neighbours if they are in one word.
    high = range(0x80, 0x100)
    pairs = [pair for near in _NEIGHBOURS for byte in high for pair in ((near, byte), (byte, near))]
    merges = [(_CHARACTERS[first], _CHARACTERS[second]) for first, second in pairs]
    tokens = [*(_CHARACTERS[byte] for byte in range(0x100)), *(first + second for first, second in merges)]
    model = {"type": "BPE", "vocab": {token: n for n, token in enumerate(tokens)}, "merges": merges}
    return json.dumps({**tokenizer, "model": model, "added_tokens": [], "post_processor": None})


def _find_differing(blocks: list[int], one: Ids, other: Ids) -> Iterator[int]:
    # tries blocks as a whole, then each character of blocks that differ
    for at in range(0, len(blocks), _TOGETHER):
        ranges = [range(block * _BLOCK, (block + 1) * _BLOCK) for block in blocks[at : at + _TOGETHER]]
        texts = ["".join(map(_probe_text, numbers)) for numbers in ranges]
        for numbers, ids, other_ids in zip(ranges, one(texts), other(texts), strict=True):
            if ids != other_ids:
                single = list(map(_probe_text, numbers))
                yield from (n for n, a, b in zip(numbers, one(single), other(single), strict=True) if a != b)


def _probe_text(number: int) -> str:
    # the character next to a small and a capital letter, signs (two, as one may belong to a word) and a digit
    return "z{0}Z!!{0}9".format(chr(number))
