"""Seeds derived from other numbers: reproducible and independent of each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(seed: int, number: int) -> int:
    """A 63-bit seed from a seed and a number, by SplitMix64's finaliser (Steele and others, 2014)."""
    z = (seed * _GOLDEN + number + 1) * _GOLDEN & _MASK
    z = (z ^ z >> 30) * _FIRST & _MASK
    z = (z ^ z >> 27) * _SECOND & _MASK
    return (z ^ z >> 31) >> 1


def mix_array(seed: int, numbers: NDArray[np.int64] | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """64 bits for each of ``numbers``; :func:`mix` returns the upper 63 of them."""
    z = (numbers.astype(np.uint64) + np.uint64((seed * _GOLDEN + 1) & _MASK)) * np.uint64(_GOLDEN)
    z = (z ^ z >> np.uint64(30)) * np.uint64(_FIRST)
    z = (z ^ z >> np.uint64(27)) * np.uint64(_SECOND)
    mixed: NDArray[np.uint64] = z ^ z >> np.uint64(31)
    return mixed
