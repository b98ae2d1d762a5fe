"""Each compiled function for BERT's data gives what its Python twin gives; and what must hold of their results."""

from __future__ import annotations

import threading
from collections import Counter
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from recipe_index import bert
from reference import plain_bert, plain_packing

SEEDS = st.integers(0, 2**31 - 1)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *"abcxyz019.,!-['#", "##a", "##b", "##c", "##x", "##0", "ab", "abc", "##bc", "##yz", "A", "zzz"]
TEXTS = st.lists(st.text(alphabet="abcxyzABCZ0129 \t\n\r\x00\x0b\x0c\x1f\x7f.,!-[]'#é中ß“ ́", max_size=40), max_size=8)


def equal(ours: tuple[NDArray[Any], ...], theirs: tuple[NDArray[Any], ...]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert mine.shape == other.shape
        assert np.array_equal(mine, other)


def spelled(texts: list[str]) -> list[list[int]]:
    """Stands for the other tokenizer: nothing for a quote, a number for each character of other texts."""
    return [[100 + ord(character) % 50 for character in text if character != "“"] for text in texts]


def wordpieces(module: Any, lowercase: bool) -> Any:
    ids = np.arange(len(PIECES), dtype=np.int32)
    return module.WordPiece(PIECES, ids, lowercase, 1, SPECIAL, spelled)


@given(first=TEXTS, second=TEXTS, lowercase=st.booleans())
def test_wordpiece(first: list[str], second: list[str], lowercase: bool) -> None:
    ours, theirs = wordpieces(bert, lowercase), wordpieces(plain_bert, lowercase)
    for texts in (first, second, first):  # the second and third time, it remembers words
        equal(ours.encode(texts), theirs.encode(texts))


@pytest.mark.parametrize(
    "text", ["a" * 100, "a" * 101, "a\x01" * 100, "[MASK]a", "a [sep] b", "x[CLS]é", "[", "é" * 200]
)
def test_wordpiece_of_odd_texts(text: str) -> None:
    equal(wordpieces(bert, True).encode([text, text]), wordpieces(plain_bert, True).encode([text, text]))


def test_wordpiece_by_several_threads() -> None:
    tokenizer = wordpieces(bert, True)
    expected = wordpieces(plain_bert, True).encode(["ab é abc"] * 50)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(tokenizer.encode(["ab é abc"] * 50))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    for one in found:
        equal(one, expected)


def test_wordpiece_goes_on_after_its_fallback_failed() -> None:
    fail = True

    def fallback(texts: list[str]) -> list[list[int]]:
        if fail:
            raise LookupError("not today")
        return [[7]] * len(texts)

    tokenizer = bert.WordPiece(PIECES, np.arange(len(PIECES), dtype=np.int32), True, 1, SPECIAL, fallback)
    with pytest.raises(LookupError, match="not today"):
        tokenizer.encode(["a é"])
    fail = False
    assert tokenizer.encode(["a é"])[0].tolist() == [PIECES.index("a"), 7]


def test_wordpiece_refuses() -> None:
    ids = np.arange(2, dtype=np.int32)
    with pytest.raises(ValueError, match="expected one for each of the 1 pieces, got 2"):
        bert.WordPiece(["a"], ids, True, 0, [], spelled)
    with pytest.raises(ValueError, match="no negative number"):
        bert.WordPiece(["a", "b"], -ids, True, 0, [], spelled)
    with pytest.raises(TypeError, match="expected str"):
        wordpieces(bert, True).encode([b"a"])
    short = bert.WordPiece(["a", "b"], ids, True, 0, [], lambda _: [])
    with pytest.raises(ValueError, match="expected ids for 1 texts, got 0"):
        short.encode(["é"])


@st.composite
def stores(draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sentences and documents: where each starts."""
    sizes = draw(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=9), min_size=2, max_size=6))
    sentences = np.cumsum([0, *(size for document in sizes for size in document)], dtype=np.int64)
    return sentences, np.cumsum([0, *map(len, sizes)], dtype=np.int64)


@given(
    store=stores(), sequence=st.integers(5, 70), short=st.sampled_from([0.0, 0.1, 0.9, 1.0]), seed=SEEDS,
    round=st.integers(0, 5),
)  # fmt: skip
def test_make_pairs(store: Any, sequence: int, short: float, seed: int, round: int) -> None:
    sentences, documents = store
    pool = np.arange(documents.size - 1)
    arguments = sentences, documents, pool, 0, pool.size, sequence, short, seed, round
    pairs = bert.make_pairs(*arguments)
    equal((pairs,), (plain_bert.make_pairs(*arguments),))
    # in parts, the same; which is why the number of workers cannot matter
    parts = [bert.make_pairs(sentences, documents, pool, n, n + 1, sequence, short, seed, round) for n in pool]
    equal((np.concatenate(parts),), (pairs,))
    for pair in pairs:
        assert pair["a_length"] >= 1
        assert pair["b_length"] >= 1
        assert pair["a_length"] + pair["b_length"] <= sequence - 3
        where = [np.searchsorted(sentences[documents], pair[f"{name}_start"], side="right") - 1 for name in "ab"]
        ends = [pair[f"{name}_start"] + pair[f"{name}_length"] for name in "ab"]
        assert all(end <= sentences[documents[place + 1]] for end, place in zip(ends, where, strict=True))
        assert (where[0] != where[1]) == bool(pair["random_next"])


def test_make_pairs_refuses() -> None:
    sentences, documents = np.array([0, 3, 3, 5]), np.array([0, 2, 3])
    pool = np.array([0, 1])
    with pytest.raises(ValueError, match="sentences: expected rising indices of tokens at index 1"):
        bert.make_pairs(sentences, documents, pool, 0, 2, 100, 0.0, 1, 0)
    for broken in ([0, 2, 9], [0, 0, 3], [-1, 2, 3]):
        with pytest.raises(ValueError, match="documents: expected rising"):
            bert.make_pairs(np.array([0, 3, 4, 5]), np.array(broken), pool, 0, 2, 16, 0.0, 1, 0)
    with pytest.raises(ValueError, match="pool: expected a document at index 1"):
        bert.make_pairs(np.array([0, 3, 4, 5]), documents, np.array([0, 2]), 1, 2, 16, 0.0, 1, 0)
    with pytest.raises(ValueError, match="pool: expected from 2"):
        bert.make_pairs(np.array([0, 3, 4, 5]), documents, np.array([0]), 0, 1, 16, 0.0, 1, 0)


@given(data=st.data(), tokens=arrays(st.sampled_from([np.uint16, np.int32]), st.integers(0, 30)))
def test_copy_segments(data: st.DataObject, tokens: NDArray[Any]) -> None:
    ends = np.sort(data.draw(arrays(np.int64, (5, 2), elements=st.integers(0, tokens.size))), axis=1)
    arguments = tokens, ends[:, 0].copy(), ends[:, 1] - ends[:, 0]
    equal((bert.copy_segments(*arguments),), (plain_bert.copy_segments(*arguments),))


def test_copy_segments_refuses() -> None:
    tokens = np.arange(5, dtype=np.int32)
    for start, length in ((-1, 1), (4, 2), (6, 0), (2**62, 3)):
        with pytest.raises(ValueError, match="segment 1 lies outside of the tokens"):
            bert.copy_segments(tokens, np.array([0, start]), np.array([5, length]))
    with pytest.raises(ValueError, match="lengths: expected from 0"):
        bert.copy_segments(tokens, np.array([0]), np.array([-1]))
    with pytest.raises(ValueError, match="as many as starts has, got 1"):
        bert.copy_segments(tokens, np.array([0, 1]), np.array([1]))


@given(
    data=st.data(), store=stores(), whole_words=st.booleans(), probability=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    kind=st.sampled_from([np.uint16, np.int32]), most=st.integers(1, 20), seed=SEEDS,
)  # fmt: skip
def test_fill_rows(
    data: st.DataObject, store: Any, whole_words: bool, probability: float, kind: Any, most: int, seed: int
) -> None:
    sentences, documents = store
    sequence = 40
    kinds = data.draw(arrays(np.uint8, 30, elements=st.sampled_from([0, 1, 2])))
    kinds[:4], kinds[4] = 1, 0
    tokens = data.draw(arrays(kind, int(sentences[-1]), elements=st.integers(0, 29)))
    pool = np.arange(documents.size - 1)
    pairs = bert.make_pairs(sentences, documents, pool, 0, pool.size, sequence, 0.1, seed, 0)
    arguments = tokens, pairs, kinds, 1, 2, 3, 0, sequence, most, probability, whole_words
    equal(bert.fill_rows(*arguments), plain_bert.fill_rows(*arguments))


def test_fill_rows_refuses() -> None:
    pairs = np.zeros(1, bert.PAIR)
    pairs["a_length"] = pairs["b_length"] = 1
    kinds = np.array([1, 0], dtype=np.uint8)

    def fill(tokens: list[int], pairs: NDArray[Any], kinds: NDArray[np.uint8] = kinds) -> Any:
        return bert.fill_rows(np.array(tokens, np.int32), pairs, kinds, 0, 0, 0, 0, 8, 2, 0.15, False)

    fill([1], pairs)
    for wrong in (2, -1):
        with pytest.raises(ValueError, match=f"pair 0 has the token id {wrong}"):
            fill([wrong], pairs)
    with pytest.raises(ValueError, match="at least one id that is no special token"):
        fill([1], pairs, np.ones(2, np.uint8))
    long = pairs.copy()
    long["b_length"] = 5
    with pytest.raises(ValueError, match="pair 0 is longer than a row"):
        fill([1] * 9, long)
    for start in (-1, 1, 2**62):
        far = pairs.copy()
        far["b_start"] = start
        with pytest.raises(ValueError, match="pair 0 lies outside of the tokens"):
            fill([1], far)


def test_masking_is_as_defined() -> None:
    """15 % of the tokens, capped; 80 % of them [MASK], 10 % another token, 10 % as they were."""
    vocabulary, rows, length = 1000, 4000, 125
    tokens = np.random.default_rng(0).integers(5, vocabulary, rows * length).astype(np.uint16)
    kinds = np.zeros(vocabulary, np.uint8)
    kinds[:5] = bert.SPECIAL
    pairs = np.zeros(rows, bert.PAIR)
    pairs["a_start"] = np.arange(rows) * length
    pairs["b_start"] = pairs["a_start"] + 60
    pairs["a_length"], pairs["b_length"] = 60, 65
    pairs["key"] = np.random.default_rng(1).integers(0, 2**64, rows, dtype=np.uint64)
    ids, mask, _, positions, labels, _ = bert.fill_rows(tokens, pairs, kinds, 2, 3, 4, 0, 128, 20, 0.15, False)
    assert (mask == 1).all()
    assert (positions[:, :19] > 0).all()  # round(128 * 0.15) = 19 of 20 places
    assert (positions[:, 19] == 0).all()
    used = positions[:, :19]
    shown, real = np.take_along_axis(ids, used, 1), labels[:, :19]
    total = used.size
    for share, probability in (
        ((shown == 4).mean(), 0.8),
        ((shown == real).mean(), 0.1 + 0.1 / (vocabulary - 5)),
        ((used <= 60).mean(), 60 / 125),  # as often in the first segment as elsewhere
    ):
        assert abs(share - probability) < 4 * np.sqrt(probability * (1 - probability) / total)
    assert not np.isin(used, [0, 61, 127]).any()
    restored = ids.copy()
    np.put_along_axis(restored, used, real, 1)
    assert np.array_equal(restored[:, 1:61].ravel(), tokens.reshape(rows, length)[:, :60].ravel())


@given(
    lengths=arrays(np.int32, st.integers(0, 120), elements=st.integers(1, 40)), most=st.integers(0, 6), seed=SEEDS
)  # fmt: skip
def test_pack(lengths: NDArray[np.int32], most: int, seed: int) -> None:
    order, rows = bert.pack(lengths, 40, most, seed)
    equal((order, rows), plain_packing.pack(lengths, 40, most, seed))
    assert sorted(order.tolist()) == list(range(lengths.size))  # every sequence once
    for start, stop in pairwise(rows.tolist()):
        assert 0 < stop - start <= (most or 40)
        assert lengths[order[start:stop]].sum() <= 40


@settings(max_examples=6)
@given(seed=SEEDS, most=st.sampled_from([2, 3, 4, 0]))
def test_pack_by_the_linear_program(seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    lengths = np.where(random.random(4000) < 0.4, 64, random.integers(3, 50, 4000)).astype(np.int32)
    equal(bert.pack(lengths, 64, most, 1), plain_packing.pack(lengths, 64, most, 1))


def fewest_rows(lengths: tuple[int, ...], capacity: int, most: int) -> int:
    """By trying everything."""
    best = len(lengths)

    def place(number: int, rows: list[tuple[int, int]]) -> None:
        nonlocal best
        if len(rows) >= best:
            return
        if number == len(lengths):
            best = len(rows)
            return
        for at, (used, held) in enumerate(rows):
            if used + lengths[number] <= capacity and held < most:
                place(number + 1, [*rows[:at], (used + lengths[number], held + 1), *rows[at + 1 :]])
        place(number + 1, [*rows, (lengths[number], 1)])

    place(0, [])
    return best


def test_pack_is_near_to_the_fewest_rows() -> None:
    excess = Counter[int]()
    for seed, most in product(range(40), (2, 3, 9)):
        lengths = np.random.default_rng(seed).integers(1, 12, 9).astype(np.int32)
        _, rows = bert.pack(lengths, 12, most, 0)
        excess[rows.size - 1 - fewest_rows(tuple(lengths.tolist()), 12, most)] += 1
    assert set(excess) <= {0, 1}
    assert excess[0] >= 110  # of 120


def test_pack_refuses() -> None:
    for wrong in (0, 41, -3):
        with pytest.raises(ValueError, match=f"lengths: expected from 1 to 40, got {wrong} at index 1"):
            bert.pack(np.array([3, wrong], np.int32), 40, 3, 0)


@st.composite
def samples(draw: st.DrawFn) -> dict[str, NDArray[Any]]:
    count, sequence, most = draw(st.integers(1, 8)), 12, 4
    lengths = draw(arrays(np.int32, count, elements=st.integers(5, sequence)))
    used = [draw(st.lists(st.integers(1, int(n) - 1), max_size=most, unique=True)) for n in lengths]
    positions = np.zeros((count, most), np.int32)
    for row, places in enumerate(used):
        positions[row, : len(places)] = sorted(places)
    small = st.integers(0, 99)
    return {
        "input_ids": draw(arrays(np.int32, (count, sequence), elements=small)),
        "segment_ids": draw(arrays(np.int8, (count, sequence), elements=st.integers(0, 1))),
        "lengths": lengths,
        "positions": positions,
        "ids": draw(arrays(np.int32, (count, most), elements=small)),
        "next_sentence": draw(arrays(np.int8, count, elements=st.integers(0, 1))),
    }


@given(rows=samples(), most=st.integers(1, 4))
def test_pack_rows(rows: dict[str, NDArray[Any]], most: int) -> None:
    order, starts = bert.pack(rows["lengths"], 20, most, 3)
    arguments = *rows.values(), order, starts, 20, 16, most
    equal(bert.pack_rows(*arguments), plain_packing.pack_rows(*arguments))


def test_pack_rows_refuses() -> None:
    one = {
        "input_ids": np.ones((2, 6), np.int32),
        "segment_ids": np.zeros((2, 6), np.int8),
        "lengths": np.array([5, 6], np.int32),
        "positions": np.array([[1, 2], [3, 0]], np.int32),
        "ids": np.ones((2, 2), np.int32),
        "next_sentence": np.zeros(2, np.int8),
    }
    both = {"order": np.array([0, 1]), "rows": np.array([0, 2]), "capacity": 11, "predictions": 3, "slots": 2}
    bert.pack_rows(**one, **both)
    for change, message in (
        ({"capacity": 10}, "row 0 has no room for sample 1"),
        ({"slots": 1}, "row 0 has no room for sample 1"),
        ({"predictions": 2}, "row 0 has more than 2 predictions"),
        ({"order": np.array([0, 2])}, "row 0 names sample 2"),
        ({"order": np.array([0, -1])}, "row 0 names sample -1"),
        ({"rows": np.array([0, 3])}, "row 0 lies outside of the order"),
        ({"rows": np.array([1, 0])}, "row 0 lies outside of the order"),
        ({"lengths": np.array([5, 7], np.int32)}, "sample 1 has 7 tokens, expected from 1 to 6"),
        ({"lengths": np.array([0, 6], np.int32)}, "sample 0 has 0 tokens"),
        ({"positions": np.array([[5, 0], [1, 0]], np.int32)}, "sample 0 predicts position 5 of 5"),
        ({"positions": np.array([[-1, 0], [1, 0]], np.int32)}, "sample 0 predicts position -1 of 5"),
        ({"ids": np.ones((2, 3), np.int32)}, r"ids: expected shape \[2, 2\]"),
        ({"next_sentence": np.zeros(3, np.int8)}, r"next_sentence: expected shape \[2\]"),
    ):
        with pytest.raises(ValueError, match=message):
            bert.pack_rows(**{**one, **both, **change})
