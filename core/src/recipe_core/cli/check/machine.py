"""Memory, devices and cores of this machine, as far as they are known without torch."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from recipe_core.launch.cores import usable_cores


@dataclass(frozen=True)
class Memory:
    """Where weights and activations will be."""

    total: int
    """Bytes."""
    of: str
    shared: bool
    """All processes of the machine share it; otherwise each has so much for itself."""


def memory(device: str) -> Memory | None:
    """The memory of ``train.device``; None where only its own library could tell."""
    if device in ("auto", "cuda"):
        found = _nvidia()
        if found is not None or device == "cuda":
            return found
    if device in ("auto", "cpu"):
        return _host()
    return None


def places(device: str) -> tuple[int, str] | None:
    """How many processes ``train.device`` has room for here, each on a device or a core of its own, and what these are.

    None where only the device's own library could tell.
    """
    if device in ("auto", "cuda"):
        gpus = _gpus()
        if gpus or device == "cuda":
            return len(gpus), "GPUs"
    if device in ("auto", "cpu"):
        return usable_cores(), "processor cores"
    return None


def _nvidia() -> Memory | None:
    """The smallest of the GPUs that the driver shows."""
    mebibytes = _gpus()
    return Memory(min(mebibytes) << 20, "one GPU", shared=False) if mebibytes else None


def _gpus() -> list[int]:
    """The memory of each GPU that the driver shows, in MiB."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    import subprocess

    query = [command, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return [int(line) for line in done.stdout.split()]
    except (OSError, subprocess.SubprocessError, ValueError):  # no driver, no GPU, or a part of one without a figure
        return []


def _host(proc: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")) -> Memory | None:
    """The memory that the kernel reports for the machine, or for the container if that is less."""
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", proc.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return None
    if found is None:
        return None
    total = int(found[1]) << 10
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):  # no container, or "max"
        allowed = total
    return Memory(min(total, allowed), "this machine", shared=True)


def available_memory(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of main memory that programs could take now, in this container if there is one; 0: not known."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", proc.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return 0
    available = int(found[1]) << 10 if found else 0
    try:
        cached = re.search(r"^file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
        used = int((group / "memory.current").read_text()) - int(cached[1] if cached else 0)  # which is given up
        return max(0, min(available, int((group / "memory.max").read_text()) - used))
    except (OSError, ValueError):  # no container, or "max"
        return available


def free_space(folder: Path) -> int:
    """Bytes free on the disk where ``folder`` is or will be."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    return shutil.disk_usage(there).free


def size_of(folder: Path) -> int:
    """Bytes in the files of ``folder``; 0 where there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def scaled(number: float, unit: str) -> str:
    """With a decimal prefix and three digits: ``12.3 GB``."""
    prefixes = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"]
    while number >= 999.5 and len(prefixes) > 1:
        number /= 1000
        prefixes.pop(0)
    return f"{number:.3g} {prefixes[0]}{unit}"
