"""A tokenizer like GPT-2's as a rank file of tiktoken, which gigatoken reads in half the time.

A rank file lists tokens with their ids, from 0 on, and tokens are merged in the order of their ids. If that implies all
merges of a tokenizer.json, the two are the same tokenizer.
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
class TokenRanks:
    """Tokens and merges of a tokenizer.json, which its rank file must reproduce."""

    regular: dict[int, bytes]
    """Tokens by id, without added tokens."""
    added: dict[str, int]
    merges: list[tuple[bytes, bytes]]

    def lines(self) -> bytes:
        """The content of the rank file."""
        return b"".join(b"%b %d\n" % (b64encode(token), number) for number, token in sorted(self.regular.items()))

    def vocabulary(self) -> dict[int, bytes]:
        """All tokens by id."""
        return {**self.regular, **{number: token.encode() for token, number in self.added.items()}}


def by_ranks(content: str) -> Any:
    """gigatoken's tokenizer from a rank file; None if that differs from the tokenizer.json ``content``."""
    key = key_of("ranks", content)
    cached = recall(key)
    if cached is not None:
        return _read(cached.path, cached.facts["added"]) if cached.data else None
    ranks = _token_ranks(json.loads(content))
    lines = ranks.lines() if ranks else b""
    tokenizer = _checked_tokenizer(ranks, lines) if ranks else None
    if ranks is None or tokenizer is None:
        remember(key, {})
        return None
    remember(key, {"added": ranks.added}, lines)
    return tokenizer


def _read(path: Path, added: dict[str, int]) -> Any:
    return import_module("gigatoken").Tokenizer.from_tiktoken(path, "gpt2", added)


def _checked_tokenizer(ranks: TokenRanks, lines: bytes) -> Any:
    # gigatoken's tokenizer of the rank file, if it agrees with `ranks`
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ranks")
        path.write_bytes(lines)
        try:
            tokenizer = _read(path, ranks.added)
        except (RuntimeError, ValueError):
            return None
    return tokenizer if tokenizer.merges == ranks.merges and tokenizer.vocab == ranks.vocabulary() else None


def _token_ranks(tokenizer: dict[str, Any]) -> TokenRanks | None:
    # None if it does not split as GPT-2's, or does anything else to a text
    model, splitter = tokenizer["model"], tokenizer["pre_tokenizer"] or {}
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    is_gpt2_like = (
        model["type"] == "BPE"
        and not any(model.get(name) for name in _CHANGES)
        and tokenizer["normalizer"] is None
        and splitter.get("type") == "ByteLevel"
        and splitter["use_regex"]
        and not splitter["add_prefix_space"]
        and not any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in added.values())
    )
    if not is_gpt2_like:
        return None
    regular = {number: token for token, number in model["vocab"].items() if token not in added}
    if regular.keys() != set(range(len(regular))):
        return None
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    try:
        return TokenRanks(
            {number: _bytes(token) for number, token in regular.items()},
            {content: token["id"] for content, token in added.items()},
            [(_bytes(left), _bytes(right)) for left, right in pairs],
        )
    except KeyError:  # a character that represents no byte
        return None


_CHANGES = (
    "byte_fallback", "continuing_subword_prefix", "dropout", "end_of_word_suffix", "ignore_merges", "unk_token",
)  # fmt: skip
"""Settings with which a model does more than merging."""
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_BYTES = {chr(number): number for number in _PRINTABLE} | {
    chr(256 + n): number for n, number in enumerate(number for number in range(256) if number not in _PRINTABLE)
}
"""The byte that a character of a token represents in GPT-2's files: itself if it is printable in Latin-1."""
CHARACTERS = {number: character for character, number in _BYTES.items()}
"""The character that represents a byte."""


def _bytes(token: str) -> bytes:
    return bytes([_BYTES[character] for character in token])
