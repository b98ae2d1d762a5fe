"""Plain twins of the functions of :mod:`recipe_index.bert` that pack, in Python, for tests.

Every sum of floating-point numbers is made in the same order as there, so that the results are the same bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.plain_cutting import fractional_patterns
from reference.plain_random import KeyedRandom, key_of

GOOD_ENOUGH = 0.9995
ALMOST = 1e-6

Pattern = tuple[list[int], int]
"""Places in the list of lengths, and how many rows are filled so."""


def pack(
    lengths: NDArray[np.int32], capacity: int, most: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The plain twin of :func:`recipe_index.bert.pack`."""
    wrong = np.flatnonzero((lengths < 1) | (lengths > capacity))
    if wrong.size:
        raise ValueError(f"lengths: expected from 1 to {capacity}, got {lengths[wrong[0]]} at index {wrong[0]}")
    present, inverse, counts = np.unique(lengths, return_inverse=True, return_counts=True)
    if not present.size:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    waiting = [iter(np.flatnonzero(inverse == item).tolist()) for item in range(present.size)]
    patterns = packing_patterns(present.tolist(), counts.tolist(), capacity, most or capacity)
    rows = [number for number, (_, times) in enumerate(patterns) for _ in range(times)]
    random = KeyedRandom(key_of(1, seed))
    for place in range(len(rows), 1, -1):
        other = random.below(place)
        rows[place - 1], rows[other] = rows[other], rows[place - 1]
    order = [next(waiting[item]) for number in rows for item in patterns[number][0]]
    ends = np.cumsum([len(patterns[number][0]) for number in rows])
    return np.array(order, dtype=np.int64), np.concatenate([[0], ends]).astype(np.int64)


def packing_patterns(lengths: list[int], counts: list[int], capacity: int, most: int) -> list[Pattern]:
    """Patterns that hold ``counts[i]`` sequences of the i-th length, which rise."""
    simple = _best_fit(lengths, counts.copy(), capacity, most)
    tokens = sum(length * count for length, count in zip(lengths, counts, strict=True))
    if float(_rows(simple) * capacity) * GOOD_ENOUGH <= float(tokens):
        return simple
    solved = _rounded(lengths, counts.copy(), capacity, most)
    return solved if _rows(solved) < _rows(simple) else simple


def _rows(patterns: list[Pattern]) -> int:
    return sum(times for _, times in patterns)


def _rounded(lengths: list[int], left: list[int], capacity: int, most: int) -> list[Pattern]:
    uses = fractional_patterns(lengths, left, capacity, most)
    times = [_take(items, int(np.floor(rows + ALMOST)), left) for items, rows in uses]
    lost = [rows - float(whole) for (_, rows), whole in zip(uses, times, strict=True)]
    for number in sorted(range(len(uses)), key=lambda n: -lost[n]):
        if lost[number] > ALMOST:
            times[number] += _take(uses[number][0], 1, left)
    out = [(items, whole) for (items, _), whole in zip(uses, times, strict=True)]
    return out + _best_fit(lengths, left, capacity, most)


def _take(items: list[int], wanted: int, left: list[int]) -> int:
    wanted = min(wanted, *(left[item] // items.count(item) for item in items))
    for item in items:
        left[item] -= wanted
    return wanted


def _best_fit(lengths: list[int], left: list[int], capacity: int, most: int) -> list[Pattern]:
    """A row starts with the longest; its last two places are filled by the pair that leaves least free."""
    out: list[Pattern] = []
    while True:
        items: list[int] = []
        room = capacity
        while len(items) < most:
            pair = items and len(items) + 2 == most
            item = _of_best_pair(lengths, left, room) if pair else _fitting(lengths, left, room)
            if item < 0:
                break
            items.append(item)
            left[item] -= 1
            room -= lengths[item]
        if not items:
            return out
        out.append((items, 1 + _take(items, 1 << 62, left)))


def _fitting(lengths: list[int], left: list[int], room: int) -> int:
    fits = (item for item in range(len(lengths) - 1, -1, -1) if left[item] > 0 and lengths[item] <= room)
    return next(fits, -1)


def _of_best_pair(lengths: list[int], left: list[int], room: int) -> int:
    found, fullest = -1, 0
    for item in range(len(lengths) - 1, -1, -1):
        if left[item] > 0 and lengths[item] <= room:
            left[item] -= 1
            other = _fitting(lengths, left, room - lengths[item])
            left[item] += 1
            filled = lengths[item] + (lengths[other] if other >= 0 else 0)
            if filled > fullest:
                found, fullest = item, filled
    return found


def pack_rows(
    input_ids: NDArray[np.int32], segment_ids: NDArray[np.int8], lengths: NDArray[np.int32],
    positions: NDArray[np.int32], ids: NDArray[np.int32], next_sentence: NDArray[np.int8], order: NDArray[np.int64],
    rows: NDArray[np.int64], capacity: int, predictions: int, slots: int,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """The plain twin of :func:`recipe_index.bert.pack_rows`."""
    count = rows.size - 1
    wide = [np.zeros((count, capacity), kind) for kind in (np.int32, np.int32, np.int8, np.int32)]
    masked = [np.zeros((count, predictions), np.int32) for _ in range(2)]
    following = [np.zeros((count, slots), kind) for kind in (np.int32, np.int8, np.int32)]
    for row in range(count):
        used = predicted = 0
        for number, sample in enumerate(order[rows[row] : rows[row + 1]]):
            length = int(lengths[sample])
            here = slice(used, used + length)
            wide[0][row, here] = input_ids[sample, :length]
            wide[1][row, here] = number + 1
            wide[2][row, here] = segment_ids[sample, :length]
            wide[3][row, here] = np.arange(length)
            real = int(np.cumprod(positions[sample] != 0).sum())
            masked[0][row, predicted : predicted + real] = positions[sample, :real] + used
            masked[1][row, predicted : predicted + real] = ids[sample, :real]
            for target, value in zip(following, (used, next_sentence[sample], 1), strict=True):
                target[row, number] = value
            used, predicted = used + length, predicted + real
    return (*wide, *masked, *following)
