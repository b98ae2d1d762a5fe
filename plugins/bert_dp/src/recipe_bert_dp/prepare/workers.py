"""Number of worker processes of a stage."""

from __future__ import annotations

from recipe_core.data import prepare

WORTH = 8_000_000
"""Bytes of work that a process must have: it takes half a second to start."""


def fitting(workers: int, size: int, items: int | None = None) -> int:
    """``workers``, or one per core where that is 0 and ``size`` bytes are worth it; no more than items or cores."""
    return prepare.fitting(workers, size / WORTH, items)
