"""The CPU's memory between steps."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of glibc's malloc.h


def keep_freed_memory() -> None:
    """Have glibc keep for the next step what a step frees, instead of handing it back to the system.

    Every step needs tensors of the same sizes again; pages fresh from the system cost a fault and are filled with zeros
    first. Other C libraries are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)
