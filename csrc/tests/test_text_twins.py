"""Texts cut into pieces: the compiled class against the regular expression of its twin."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipe_index import text
from reference import plain_text

SPACES = "".join(chr(n) for n in range(sys.maxunicode + 1) if chr(n).isspace())
TEXTS = st.lists(
    st.text(st.sampled_from("aB9 .,'\"-(_\n\u00e9\u0430\u4e2d\U0001f600\u0301" + SPACES), max_size=40), max_size=8
)


def spelled(texts: list[str]) -> list[list[int]]:
    """Ids that show every piece: its code points, and where it ends."""
    return [[*map(ord, piece), -1 % 2**31] for piece in texts]


def same(first: Any, second: Any) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@given(first=TEXTS, second=TEXTS)
def test_pieces(first: list[str], second: list[str]) -> None:
    ours, theirs = text.Pieces(spelled), plain_text.Pieces(spelled)
    for texts in (first, second, first):  # the second and third time, it remembers pieces
        assert same(ours.encode(texts), theirs.encode(texts))


def test_pieces_beside_every_white_space() -> None:
    """Python's own notion of it, character by character, and of characters that begin with the same bytes."""
    characters = [
        *SPACES,
        *"a.\u0084\u0086\u00a1\u1681\u167f\u200b\u2027\u202a\u2030\u2060\u205e\u2fff\u3001\u3041\ufeff",
    ]
    around = ["".join(three) for three in itertools.product(characters, " a.", characters)]
    texts = [*around, *(f"x{three}y" for three in around)]
    assert same(text.Pieces(spelled).encode(texts), plain_text.Pieces(spelled).encode(texts))


@pytest.mark.parametrize(
    "odd", ["", " ", "  ", "a", "\n", "a" * 5000, "\u4e2d" * 5000, " a" * 5000, "a.b.c" * 999, "\0 \0"]
)
def test_odd_texts(odd: str) -> None:
    assert same(text.Pieces(spelled).encode([odd, odd]), plain_text.Pieces(spelled).encode([odd, odd]))


def test_a_piece_is_asked_for_once() -> None:
    asked: list[str] = []

    def fallback(texts: list[str]) -> list[list[int]]:
        asked.extend(texts)
        return [[len(piece)] for piece in texts]

    pieces = text.Pieces(fallback)
    assert pieces.encode(["one two one", " two"])[0].tolist() == [3, 4, 4, 4]
    assert pieces.encode(["one two"])[0].tolist() == [3, 4]
    assert asked == ["one", " two", " one"]


def test_what_is_remembered_has_a_limit() -> None:
    """More bytes of pieces than are kept: all are forgotten, and asked for again."""
    asked = 0

    def fallback(texts: list[str]) -> list[list[int]]:
        nonlocal asked
        asked += len(texts)
        return [[int(piece[-6:])] for piece in texts]

    pieces = text.Pieces(fallback)
    many = " ".join(f"{number:01000}" for number in range(70_000))
    for times in (1, 2):
        ids, lengths = pieces.encode([many])
        assert np.array_equal(ids, np.arange(70_000))
        assert lengths.tolist() == [70_000]
        assert asked == 70_000 * times


def test_it_goes_on_after_its_fallback_failed() -> None:
    fail = True

    def fallback(texts: list[str]) -> list[list[int]]:
        if fail:
            raise LookupError("not today")
        return [[7]] * len(texts)

    pieces = text.Pieces(fallback)
    with pytest.raises(LookupError, match="not today"):
        pieces.encode(["a b"])
    fail = False
    assert pieces.encode(["a b"])[0].tolist() == [7, 7]


def test_it_refuses() -> None:
    with pytest.raises(TypeError, match="expected str"):
        text.Pieces(spelled).encode([b"a"])  # type: ignore[list-item]
    with pytest.raises(UnicodeEncodeError):
        text.Pieces(spelled).encode(["\ud800"])
    with pytest.raises(ValueError, match="expected ids for 1 texts, got 0"):
        text.Pieces(lambda _: []).encode(["a"])


def test_several_threads() -> None:
    pieces = text.Pieces(spelled)
    expected = plain_text.Pieces(spelled).encode(["one, two three"] * 50)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(pieces.encode(["one, two three"] * 50))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert all(same(one, expected) for one in found)
