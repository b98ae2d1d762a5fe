"""The name of this machine, as the tools of its cluster know it."""

from __future__ import annotations

import os
import platform


def host() -> str:
    """Return the name of this machine: its Slurm node name, else that of the operating system."""
    return os.environ.get("SLURMD_NODENAME") or platform.node() or "unknown host"
