"""Memory, devices and cores of this machine, as far as they are known without torch."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from recipe_core.engine.machine.probe import gpus
from recipe_core.launch.cores import usable_cores


@dataclass(frozen=True)
class Memory:
    """Memory for weights and activations."""

    total: int
    """Bytes."""
    of: str
    shared: bool
    """All processes of the machine share it; otherwise each process has this much."""


def memory(device: str) -> Memory | None:
    """Return the memory of ``train.device``; None if only the device's own library knows it."""
    if device in ("auto", "cuda"):
        gpu = _nvidia()
        if gpu is not None or device == "cuda":
            return gpu
    if device in ("auto", "cpu"):
        return _host()
    return None


def device_slots(device: str) -> tuple[int, str] | None:
    """Return how many processes fit on ``train.device`` here, one per device or core, and the name of these units.

    None if only the device's own library knows it.
    """
    if device in ("auto", "cuda"):
        found = gpus()
        if found or device == "cuda":
            return len(found), "GPUs"
    if device in ("auto", "cpu"):
        return usable_cores(), "processor cores"
    return None


def _nvidia() -> Memory | None:
    mebibytes = gpus()
    return Memory(min(mebibytes) << 20, "one GPU", shared=False) if mebibytes else None


def _host(proc: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> Memory | None:
    """MemTotal of the kernel, or the limit of the container if that is less."""
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB", proc.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return None
    if match is None:
        return None
    total = int(match[1]) << 10
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):  # no container, or "max"
        allowed = total
    return Memory(min(total, allowed), "this machine", shared=True)


def available_memory(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of main memory that are available now, in this container if there is one; 0: not known."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", proc.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return 0
    available = int(match[1]) << 10 if match else 0
    try:
        cached = re.search(r"^file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        # the kernel drops it when needed
        used = int((group / "memory.current").read_text()) - int(cached[1] if cached else 0)
        return max(0, min(available, int((group / "memory.max").read_text()) - used))
    except (OSError, ValueError):  # no container, or "max"
        return available


def free_space(folder: Path) -> int:
    """Return the free bytes on the disk of ``folder``, which need not exist yet."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def size_of(folder: Path) -> int:
    """Return the bytes of the files in ``folder``; 0 if it does not exist."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def scaled(number: float, unit: str) -> str:
    """Format with a decimal prefix and three digits: ``12.3 GB``."""
    prefixes = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"]
    while number >= 999.5 and len(prefixes) > 1:
        number /= 1000
        prefixes.pop(0)
    return f"{number:.3g} {prefixes[0]}{unit}"
