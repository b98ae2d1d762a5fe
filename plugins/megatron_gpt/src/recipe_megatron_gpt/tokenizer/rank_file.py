"""A tokenizer like GPT-2's as a rank file, as tiktoken has them: gigatoken reads that in half the time.

A rank file says of each token which id it has, from 0 on, and that tokens are merged in the order of their ids. Where
all merges of a tokenizer.json follow from that, the two are the same tokenizer.
"""

from __future__ import annotations

import json
import tempfile
from base64 import b64encode
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from recipe_megatron_gpt.tokenizer.cache import key_of, recall, remember


@dataclass(frozen=True)
class Ranks:
    """Features of a tokenizer.json that a rank file and its reader must share."""

    regular: dict[int, bytes]
    """Tokens by id, without those that are looked for in a text before it is split."""
    added: dict[str, int]
    merges: list[tuple[bytes, bytes]]

    def lines(self) -> bytes:
        """The rank file."""
        return b"".join(b"%b %d\n" % (b64encode(token), number) for number, token in sorted(self.regular.items()))

    def vocabulary(self) -> dict[int, bytes]:
        """All tokens by id."""
        return {**self.regular, **{number: token.encode() for token, number in self.added.items()}}


def by_ranks(content: str) -> Any:
    """gigatoken's tokenizer by a rank file; None where that would not be what ``content``, a tokenizer.json, says."""
    key = key_of("ranks", content)
    cached = recall(key)
    if cached is not None:
        return _read(cached.path, cached.facts["added"]) if cached.data else None
    ranks = _ranks(json.loads(content))
    lines = ranks.lines() if ranks else b""
    tokenizer = _compared(ranks, lines) if ranks else None
    if ranks is None or tokenizer is None:
        remember(key, {})
        return None
    remember(key, {"added": ranks.added}, lines)
    return tokenizer


def _read(path: Path, added: dict[str, int]) -> Any:
    return import_module("gigatoken").Tokenizer.from_tiktoken(path, "gpt2", added)


def _compared(ranks: Ranks, lines: bytes) -> Any:
    """gigatoken's tokenizer for the rank file ``lines``, if it agrees with ``ranks``."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ranks")
        path.write_bytes(lines)
        try:
            tokenizer = _read(path, ranks.added)
        except (RuntimeError, ValueError):
            return None
    return tokenizer if tokenizer.merges == ranks.merges and tokenizer.vocab == ranks.vocabulary() else None


def _ranks(tokenizer: dict[str, Any]) -> Ranks | None:
    """The tokens and merges of a tokenizer.json, if it splits a text as GPT-2's does and does nothing else to it."""
    model, splitter = tokenizer["model"], tokenizer["pre_tokenizer"] or {}
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    alike = (
        model["type"] == "BPE"
        and not any(model.get(name) for name in _CHANGES)
        and tokenizer["normalizer"] is None
        and splitter.get("type") == "ByteLevel"
        and splitter["use_regex"]
        and not splitter["add_prefix_space"]
        and not any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added.values())
    )
    if not alike:
        return None
    regular = {number: token for token, number in model["vocab"].items() if token not in added}
    if regular.keys() != set(range(len(regular))):
        return None
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    try:
        return Ranks(
            {number: _bytes(token) for number, token in regular.items()},
            {content: token["id"] for content, token in added.items()},
            [(_bytes(one), _bytes(two)) for one, two in pairs],
        )
    except KeyError:  # a character that stands for no byte
        return None


_CHANGES = (
    "byte_fallback", "continuing_subword_prefix", "dropout", "end_of_word_suffix", "ignore_merges", "unk_token",
)  # fmt: skip
"""Settings of a model by which it does more than to merge."""
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_BYTES = {chr(number): number for number in _PRINTABLE} | {
    chr(256 + n): number for n, number in enumerate(number for number in range(256) if number not in _PRINTABLE)
}
"""The byte that a character of a token stands for, as GPT-2 writes them: itself where it is printable in Latin-1."""
CHARACTERS = {number: character for character, number in _BYTES.items()}
"""The character that stands for a byte."""


def _bytes(token: str) -> bytes:
    return bytes([_BYTES[character] for character in token])
