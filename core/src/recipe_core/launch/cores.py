"""Processor cores. No torch here."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Number of cores that this process may use, where the platform knows it; otherwise the cores of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
