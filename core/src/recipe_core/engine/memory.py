"""The CPU's memory: glibc's handling of freed memory, peak and free memory."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # M_TRIM_THRESHOLD and so on of glibc's malloc.h
_LARGE = 1 << 20
_HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"  # of PyTorch, which reads it at its first allocation
_STATUS, _MEMINFO = Path("/proc/self/status"), Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_MAPPINGS = 1 << 16  # glibc's own default, which keep_freed_memory sets to 0


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next step, instead of returning it to the system.

    Every step needs tensors of the same sizes; fresh pages cost a fault and are zeroed first. No effect on other C
    libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, -1)


def return_freed_memory() -> None:
    """Have glibc return each large allocation to the system as soon as it is freed.

    By default it soon takes tensors of up to 32 MB from its heap, which fragments and grows: by 150 MB in the
    conversion of a 2-GB checkpoint. No effect on other C libraries.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc
        return
    mallopt(_MMAP_MAX, _MAPPINGS)
    mallopt(_MMAP_THRESHOLD, _LARGE)
    mallopt(_TRIM_THRESHOLD, 16 * _LARGE)  # smaller allocations are reused


@contextmanager
def huge_pages() -> Iterator[None]:
    """Have PyTorch take huge pages for large tensors if its first tensor is allocated inside.

    Where large allocations are returned, each gets new pages, and small ones take a tenth of a conversion's time.
    """
    before = os.environ.get(_HUGE_PAGES)
    os.environ.setdefault(_HUGE_PAGES, "1")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_HUGE_PAGES, None)


def pins_memory(device: torch.device) -> bool:
    """True if ``device`` copies asynchronously from pinned memory."""
    return device.type == "cuda"


def peak_resident() -> int | None:
    """Peak resident bytes of this process.

    Linux's VmHWM counts the current program; getrusage's maximum includes the process before exec, which may have been
    a far larger parent.
    """
    try:
        with _STATUS.open("rb", buffering=0) as status:  # not as text: each row of metrics reads it
            _, found, rest = status.read(1 << 14).partition(b"VmHWM:")
        if found:
            return int(rest.split(None, 1)[0]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_memory(meminfo: Path = _MEMINFO, group: Path = _GROUP) -> int | None:
    """Free bytes of this machine or container, without swapping; None if not known."""
    try:
        lines = meminfo.read_text().splitlines()
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    try:
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        used = int((group / "memory.current").read_text()) - int(counts["inactive_file"])
        return max(0, min(free, int((group / "memory.max").read_text()) - used))
    except (OSError, ValueError, KeyError):  # no container, or "max"
        return free


def return_gathered_memory(device: torch.device) -> None:
    """Return freed memory to the system on a CPU, for models whose blocks are gathered one by one.

    Gathered blocks and their gradients come and go between shards that stay: a heap that keeps freed memory fragments
    and grows to twice the memory in use.
    """
    if device.type == "cpu":
        return_freed_memory()
