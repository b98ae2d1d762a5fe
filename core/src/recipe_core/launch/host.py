"""The name of this machine, as the tools of its cluster know it, and its kernel's counters of a process."""

from __future__ import annotations

import os
import platform
from pathlib import Path

PROC = Path("/proc")


def host() -> str:
    """Return the name of this machine: its Slurm node name, else that of the operating system."""
    return os.environ.get("SLURMD_NODENAME") or platform.node() or "unknown host"


def process_counters(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of proc_pid_stat(5) from the third, the state, on.

    Raises:
        OSError: no such process, or no Linux.
    """
    text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()  # the name in parentheses may hold spaces
