"""The argument checks of :mod:`reference.plain`, in the words of the compiled functions."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike, NDArray

MOST_ENTRIES = 1 << 40
"""Entries of any result: far more than memory holds, and products with an int32 cannot overflow 64 bits."""
MOST_ORDERED = 1 << 32
"""Entries of a document order: their tokens, below 2**31 each, can then be counted in 64 bits."""
MOST_SEQUENCE = (1 << 31) - 2
MOST_SEED = (1 << 32) - 1


def integer(name: str, value: SupportsIndex, low: int, high: int) -> int:
    """``value`` as a Python integer from ``low`` to ``high``."""
    number = operator.index(value)
    if not low <= number <= high:
        raise ValueError(f"{name}: expected from {low} to {high}, got {number}")
    return number


def array(name: str, value: NDArray[Any], dtypes: tuple[DTypeLike, ...], dimensions: int = 1) -> NDArray[Any]:
    """``value``, a contiguous array of one of ``dtypes``, with ``dimensions`` dimensions."""
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{name}: expected a NumPy array, got {type(value).__name__}")
    accepted = [np.dtype(dtype) for dtype in dtypes]
    if value.dtype not in accepted:
        raise ValueError(f"{name}: expected dtype {' or '.join(map(str, accepted))}, got {value.dtype}")
    if value.ndim != dimensions:
        raise ValueError(f"{name}: expected {dimensions} dimension(s), got {value.ndim}")
    if not value.flags.c_contiguous:
        raise ValueError(f"{name}: expected contiguous memory; numpy.ascontiguousarray makes a copy that is")
    return value


def not_empty(name: str, value: NDArray[Any]) -> None:
    """Refuse an array without entries."""
    if not value.size:
        raise ValueError(f"{name}: expected at least one entry, got none")


def indices(name: str, value: NDArray[Any], end: int) -> None:
    """Refuse entries that are no index into ``end`` things."""
    wrong = np.flatnonzero((value < 0) | (value >= end))
    if wrong.size:
        at = wrong[0]
        raise ValueError(f"{name}: expected indices from 0 to below {end}, got {value[at]} at index {at}")


def not_negative(name: str, value: NDArray[Any]) -> None:
    """Refuse negative entries."""
    wrong = np.flatnonzero(value < 0)
    if wrong.size:
        raise ValueError(f"{name}: expected no negative number, got {value[wrong[0]]} at index {wrong[0]}")
