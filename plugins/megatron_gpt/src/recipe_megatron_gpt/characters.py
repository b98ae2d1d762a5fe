"""The characters that gigatoken and tokenizers take for different things.

Tokenizers split a text into words by what characters are: letters, digits, white space. Each library has that from the
Unicode tables of its own age, so characters that one of them does not know yet part words in one and not in the other.
Which characters these are is found out by trying all of them, once for each way to split and each pair of versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_megatron_gpt.ranks import CHARACTERS
from recipe_megatron_gpt.recalled import key_of, recall, remember

Ids = Callable[[list[str]], list[list[int]]]
"""Token ids of texts."""

_NEIGHBOURS = b"zZ!9"
"""What a character is tried beside: what a splitter may join it with."""
_BLOCK = 256
"""Characters in a text that is compared as a whole."""
_TOGETHER = 64
"""Such texts at a time, for the threads of a library; all of them would take half a gigabyte."""
_CODES = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_UNTRIED = ((0x40000, 0xE0000), (0xE1000, _CODES))
"""Planes without any character in a text: unassigned, or for private use. Trying them would take most of the time."""
_TABLE_FREE = {"Metaspace", "Prepend", "Replace"}
"""Parts of a tokenizer that look for given characters only."""


class Characters:
    """A set of characters that is searched for in many texts."""

    def __init__(self, numbers: NDArray[np.uint32]) -> None:
        self._is_in = np.zeros(_CODES, dtype=np.bool_)
        self._is_in[numbers] = True
        for start, stop in _UNTRIED if numbers.size else ():
            self._is_in[start:stop] = True
        self._empty = not numbers.size

    def in_text(self, text: str) -> bool:
        """True where ``text``, which has no halves of surrogate pairs, holds one of them."""
        if self._empty or text.isascii():
            return False
        return bool(self._is_in[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)].any())


def differing(content: str, one: Callable[[str], Ids], other: Callable[[str], Ids]) -> Characters | None:
    """The characters that two libraries split differently, as kept in the cache or found out now.

    Args:
        content: of a tokenizer.json.
        one, other: the libraries: make a tokenizer of the content of a tokenizer.json.

    Returns:
        None where that cannot be found out: the tokenizer is no byte-level one and knows kinds of characters.
    """
    tokenizer = json.loads(content)
    kinds = {kind for name in ("normalizer", "pre_tokenizer") for kind in _kinds(tokenizer[name])}
    if "ByteLevel" not in kinds:
        return Characters(np.zeros(0, dtype=np.uint32)) if kinds <= _TABLE_FREE else None
    probe = _probe(tokenizer)
    key = key_of("characters", probe)
    kept = recall(key)
    if kept is None:
        numbers = np.array(list(_tried(one(probe), other(probe))), dtype=np.uint32)
        remember(key, {}, numbers.tobytes())
    else:
        numbers = np.frombuffer(kept.data, dtype=np.uint32)
    return Characters(numbers)


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


def _tried(one: Ids, other: Ids) -> Iterator[int]:
    """The numbers of the characters that differ: first by blocks, then those of each block that does."""
    numbers = [number for number in range(_CODES) if number not in _SURROGATES and not _is_untried(number)]
    blocks = [numbers[at : at + _BLOCK] for at in range(0, len(numbers), _BLOCK)]
    for at in range(0, len(blocks), _TOGETHER):
        some = blocks[at : at + _TOGETHER]
        texts = ["".join(map(_tried_text, block)) for block in some]
        for block, mine, theirs in zip(some, one(texts), other(texts), strict=True):
            if mine != theirs:
                single = list(map(_tried_text, block))
                yield from (n for n, a, b in zip(block, one(single), other(single), strict=True) if a != b)


def _is_untried(number: int) -> bool:
    return any(start <= number < stop for start, stop in _UNTRIED)


def _tried_text(number: int) -> str:
    """A character beside a small and a capital letter, signs (two, as one may belong to a word) and a digit."""
    return "z{0}Z!!{0}9".format(chr(number))
