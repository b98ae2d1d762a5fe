"""The linear program of the cutting-stock problem, by column generation; see ``cutting_stock.cpp``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GAIN = 1e-4
PIVOT = 1e-9
FULL = 0.9998
SMOOTH = 0.95
ROUNDS = 12
LOOK = 16

Floats = NDArray[np.float64]


def fractional_patterns(
    lengths: list[int], counts: list[int], capacity: int, most: int
) -> list[tuple[list[int], float]]:
    """Patterns of places in ``lengths`` and how often each is used, in fractions of a row."""
    size = len(lengths)
    uses: list[list[int]] = []
    rows, prices = np.zeros(size), np.zeros(size)
    inverse = np.zeros((size, size))
    for item, length in enumerate(lengths):
        times = min(most, capacity // length)
        uses.append([item] * times)
        prices[item] = inverse[item, item] = 1.0 / float(times)
        rows[item] = float(counts[item]) * prices[item]
    tokens = _sum([float(length) * float(count) for length, count in zip(lengths, counts, strict=True)])
    enough = tokens / (FULL * float(capacity))
    for number in range(ROUNDS * size):
        if number % LOOK == 0 and _sum(rows.tolist()) <= enough:
            break
        items, value = _find(lengths, capacity, most, prices)
        if value <= 1 + GAIN:
            break
        entering = np.zeros(size)
        for item in items:
            entering += inverse[:, item]
        candidates = np.flatnonzero(entering > PIVOT)
        leaving = int(candidates[np.argmin(rows[candidates] / entering[candidates])])
        pivot = float(entering[leaving])
        used = float(rows[leaving]) / pivot
        rows = np.maximum(0.0, rows - used * entering)
        rows[leaving], uses[leaving] = used, items
        shares = inverse[leaving] / pivot
        inverse -= entering[:, None] * shares
        inverse[leaving] = shares
        prices += (1.0 - value) * shares
    return list(zip(uses, rows.tolist(), strict=True))


def _sum(values: list[float]) -> float:
    total = 0.0
    for value in values:  # not sum(), which from Python 3.12 on rounds less
        total += value
    return total


def _find(lengths: list[int], capacity: int, most: int, prices: Floats) -> tuple[list[int], float]:
    """The best pattern at prices between the basis' own and each length's share of a row (smoothing, Wentges 1997)."""
    weight, step = SMOOTH, 1 - SMOOTH
    shares = np.array([float(length) / float(capacity) for length in lengths])
    while True:
        items = _knapsack(lengths, capacity, most, weight * shares + (1 - weight) * prices)
        value = _sum([float(prices[item]) for item in items])
        if value > 1 + GAIN or weight == 0:
            return items, value
        weight, step = max(0.0, weight - step), step * 2


def _knapsack(lengths: list[int], capacity: int, most: int, values: Floats) -> list[int]:
    """The most valuable pattern of at most ``most`` lengths and ``capacity`` tokens."""
    single, item = np.zeros(capacity + 1), np.full(capacity + 1, -1)
    places = {length: place for place, length in enumerate(lengths)}
    for room in range(1, capacity + 1):
        single[room], item[room] = single[room - 1], item[room - 1]
        place = places.get(room)
        if place is not None and values[place] > single[room]:
            single[room], item[room] = values[place], place
    tables: dict[int, Floats] = {1: single}

    def table(count: int) -> Floats:
        if count not in tables:
            left, right = table((count + 1) // 2), table(count // 2)
            best = [max(left[: room + 1] + right[room::-1]) for room in range(capacity + 1)]
            tables[count] = np.array(best)
        return tables[count]

    def collect(count: int, room: int) -> list[int]:
        if count == 1:
            return [int(item[room])] if item[room] >= 0 else []
        left, right = table((count + 1) // 2), table(count // 2)
        split = int(np.flatnonzero(left[: room + 1] + right[room::-1] == table(count)[room])[0])
        return collect((count + 1) // 2, split) + collect(count // 2, room - split)

    return collect(min(most, capacity // lengths[0]), capacity)
