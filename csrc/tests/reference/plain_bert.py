"""Plain twins of the functions of :mod:`recipe_index.bert` that make samples, in Python, for tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.plain_random import KeyedRandom, key_of

PAIR = np.dtype(
    [
        ("a_start", "<i8"), ("b_start", "<i8"), ("key", "<u8"), ("a_length", "<u2"), ("b_length", "<u2"),
        ("random_next", "u1"), ("single", "u1"), ("unused", "<u2"),
    ]
)  # fmt: skip
"""Places of the two segments of a sample in the tokens, and the key of its own random numbers."""
SPECIAL, CONTINUATION = 1, 2
LONGEST_WORD = 100

_PUNCTUATION = r"!-/:-@\[-`{-~"
_PARTS = re.compile(rf"[{_PUNCTUATION}]|[^ \t\n\r{_PUNCTUATION}]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class WordPiece:
    """The plain twin of :class:`recipe_index.bert.WordPiece`."""

    def __init__(
        self, pieces: Sequence[str], ids: NDArray[np.int32], lowercase: bool, unknown: int, special: Sequence[str],
        fallback: Callable[[list[str]], list[list[int]]],
    ) -> None:  # fmt: skip
        self._ids = dict(zip(reversed(pieces), reversed(ids.tolist()), strict=True))
        self._lowercase, self._unknown, self._special, self._fallback = lowercase, unknown, special, fallback

    def encode(self, texts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Token ids of ``texts``, one behind the other, and how many belong to each: ``[tokens]``, ``[texts]``."""
        found = [self._encode(text) for text in texts]
        ids = np.array([number for one in found for number in one], dtype=np.int32)
        return ids, np.array([len(one) for one in found], dtype=np.int32)

    def _encode(self, text: str) -> list[int]:
        if any(token in text for token in self._special):
            return self._fallback([text])[0]
        ids: list[int] = []
        for part in _PARTS.findall(text):
            ids += self._word(part) if part.isascii() else self._fallback([part])[0]
        return ids

    def _word(self, part: str) -> list[int]:
        word = _CONTROL.sub("", part.lower() if self._lowercase else part)
        if len(word) > LONGEST_WORD:
            return [self._unknown]
        ids: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if mark + word[start:end] in self._ids)
            end = next(ends, None)
            if end is None:
                return [self._unknown]
            ids.append(self._ids[mark + word[start:end]])
            start = end
        return ids


def make_pairs(
    sentences: NDArray[np.int64], documents: NDArray[np.int64], pool: NDArray[np.int64], first: int, last: int,
    sequence: int, short_probability: float, seed: int, round: int,
) -> NDArray[np.void]:  # fmt: skip
    """The plain twin of :func:`recipe_index.bert.make_pairs`."""
    found: list[tuple[int, ...]] = []
    key = key_of(key_of(0, seed), round)
    most = sequence - 3

    def tokens(start: int, stop: int) -> tuple[int, int]:
        begin = int(sentences[start])
        return begin, int(sentences[stop]) - begin

    for place in range(first, last):
        document = int(pool[place])
        random = KeyedRandom(key_of(key, document))
        target = 2 + random.below(most - 1) if random.chance(short_probability) else most
        start, end = int(documents[document]), int(documents[document + 1])
        while start < end:
            stop = start + 1
            while stop < end and tokens(start, stop)[1] < target:
                stop += 1
            count = stop - start
            middle = start + (1 if count < 2 else 1 + random.below(count - 1))
            a = tokens(start, middle)
            random_next = count < 2 or random.chance(0.5)
            if random_next:
                other = random.below(pool.size - 1)
                other = int(pool[other + (other >= place)])
                low, high = int(documents[other]), int(documents[other + 1])
                low += random.below(high - low)
                until = low + 1
                while until < high and tokens(low, until)[1] < target - a[1]:
                    until += 1
                b = tokens(low, until)
            else:
                b = tokens(middle, stop)
            a, b = _truncated(a, b, most, random)
            found.append((a[0], b[0], random.next(), a[1], b[1], random_next, count < 2, 0))
            start = middle if random_next else stop
    return np.array(found, dtype=PAIR)


def _truncated(
    a: tuple[int, int], b: tuple[int, int], most: int, random: KeyedRandom
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Drop tokens of the longer segment, at its start or its end as a coin decides, until both fit together."""
    coins, left = 0, 0
    while a[1] + b[1] > most:
        if not left:
            coins, left = random.next(), 64
        coin, coins, left = coins & 1, coins >> 1, left - 1
        if a[1] > b[1]:
            a = a[0] + coin, a[1] - 1
        else:
            b = b[0] + coin, b[1] - 1
    return a, b


def copy_segments(tokens: NDArray[Any], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """The plain twin of :func:`recipe_index.bert.copy_segments`."""
    parts = [tokens[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
    return np.concatenate([tokens[:0], *parts])


def fill_rows(
    tokens: NDArray[Any], pairs: NDArray[np.void], kinds: NDArray[np.uint8], cls: int, sep: int, mask: int, pad: int,
    sequence: int, most: int, probability: float, whole_words: bool,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """The plain twin of :func:`recipe_index.bert.fill_rows`."""
    count = pairs.size
    ids = np.full((count, sequence), pad, np.int32)
    masks, segments = np.zeros((count, sequence), np.int8), np.zeros((count, sequence), np.int8)
    positions, labels = np.zeros((count, most), np.int32), np.zeros((count, most), np.int32)
    for row, pair in enumerate(pairs):
        parts = [tokens[int(pair[f"{name}_start"]) :][: int(pair[f"{name}_length"])].astype(np.int32) for name in "ab"]
        line = np.concatenate([[cls], parts[0], [sep], parts[1], [sep]]).astype(np.int32)
        random = KeyedRandom(int(pair["key"]))
        target = min(most, max(1, round(line.size * probability)))
        chosen = _chosen(line, kinds, target, whole_words, random)
        positions[row, : len(chosen)] = chosen
        for number, place in enumerate(chosen):
            labels[row, number] = line[place]
            line[place] = _replacement(int(line[place]), mask, kinds, random)
        ids[row, : line.size] = line
        masks[row, : line.size] = 1
        segments[row, parts[0].size + 2 : line.size] = 1
    return ids, masks, segments, positions, labels, pairs["random_next"].astype(np.int8)


def _chosen(
    line: NDArray[np.int32], kinds: NDArray[np.uint8], target: int, whole_words: bool, random: KeyedRandom
) -> list[int]:
    """The positions to be predicted, in rising order."""
    candidates: list[list[int]] = []
    word = False
    for place, kind in enumerate(kinds[line].tolist()):
        if kind & SPECIAL:
            word = False
        elif whole_words and word and kind & CONTINUATION:
            candidates[-1].append(place)
        else:
            candidates.append([place])
            word = True
    chosen: list[int] = []
    for number in range(len(candidates)):
        if len(chosen) >= target:
            break
        other = number + random.below(len(candidates) - number)
        candidates[number], candidates[other] = candidates[other], candidates[number]
        if len(chosen) + len(candidates[number]) <= target:
            chosen += candidates[number]
    return sorted(chosen)


def _replacement(token: int, mask: int, kinds: NDArray[np.uint8], random: KeyedRandom) -> int:
    if random.chance(0.8):
        return mask
    if random.chance(0.5):
        return token
    drawn = random.below(kinds.size)
    while kinds[drawn] & SPECIAL:
        drawn = random.below(kinds.size)
    return drawn
