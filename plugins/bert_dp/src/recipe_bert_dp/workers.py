"""How many worker processes a stage is given."""

from __future__ import annotations

import os

WORTH = 8_000_000
"""Bytes of work that a process must have: it takes half a second to start."""


def fitting(workers: int, size: int, items: int | None = None) -> int:
    """``workers``, or one per core where that is 0, if ``size`` bytes are worth it; never more than ``items``."""
    if not workers:
        affinity = getattr(os, "sched_getaffinity", None)  # only Linux tells which cores are ours
        cores = len(affinity(0)) if affinity else os.cpu_count() or 1
        workers = min(cores, size // WORTH)
    return max(1, workers if items is None else min(workers, items))
