"""Number of worker processes of a stage."""

from __future__ import annotations

from recipe_core.data import prepare

WORTH = 8_000_000
"""Minimum bytes of work per process, which takes half a second to start."""


def fitting(workers: int, size: int, items: int | None = None) -> int:
    """``workers``; if 0, one per core, fewer for a small ``size`` in bytes. Never more than items or cores."""
    return prepare.fitting(workers, size / WORTH, items)
