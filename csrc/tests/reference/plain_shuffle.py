"""The fast order: a uniform shuffle that stays inside the processor's caches, the same on every machine.

A shuffle that swaps over the whole array waits for memory at each step. This one (Rao 1961, Sandelius 1962) deals the
entries into buckets at random, lays the buckets end to end, and shuffles inside each. The random numbers are those of
SplitMix64 (Steele, Lea and Flood, 2014), each computed from its number, so that no step waits for the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DOCUMENTS, LAST_DOCUMENTS, SAMPLES, LAST_SAMPLES = 1, 2, 3, 4
"""Uses of a shuffle: two shuffles of one seed share no random numbers."""

BUCKET_ENTRIES = 1 << 15
"""The expected size of a bucket is at most this, 128 KiB of int32, which a second-level cache holds."""
MOST_BITS = 12
"""4096 buckets at most: the ends of those being filled are in that cache too. From 2**27 entries on they grow."""

GOLDEN = 0x9E3779B97F4A7C15


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def words(seed: int, use: int, count: int) -> NDArray[np.uint64]:
    """The first ``count`` outputs of SplitMix64, started from ``seed`` and from what they are for."""
    start = mixed(np.array([use << 32 | seed], dtype=np.uint64))
    return mixed(start + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN))


def bucket_bits(entries: int) -> int:
    """Logarithm of the number of buckets."""
    bits = 0
    while bits < MOST_BITS and entries >> bits > BUCKET_ENTRIES:
        bits += 1
    return bits


def fast_shuffle(entries: NDArray[Any], seed: int, use: int) -> None:
    """Shuffle ``entries`` in place.

    An entry goes to each place with a probability that is off by less than 1 in 2**32 divided by its bucket's size.
    """
    count, bits = entries.size, bucket_bits(entries.size)
    # Four entries share a word, 16 bits each, lowest first; the upper bits of those name the bucket.
    lanes = words(seed, use, -(-count // 4)).astype("<u8").view("<u2")[:count]
    buckets = lanes.astype(np.int64) >> (16 - bits)
    entries[:] = entries[np.argsort(buckets, kind="stable")]
    # Two places share a word, 32 bits each.
    randoms = words(seed, use + 8, -(-count // 2)).astype("<u8").view("<u4")[:count].tolist()
    ends = np.cumsum(np.bincount(buckets, minlength=1 << bits)).tolist()
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        for place in range(start + 1, end):  # Fisher and Yates, Durstenfeld's way
            other = start + (randoms[place] * (place - start + 1) >> 32)
            entries[place], entries[other] = entries[other], entries[place]
