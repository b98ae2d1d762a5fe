"""The name by which this machine is known to whoever has to act on it."""

from __future__ import annotations

import os
import platform


def host() -> str:
    """The name of this machine: that of the node for Slurm's tools, else that of the operating system."""
    return os.environ.get("SLURMD_NODENAME") or platform.node() or "unknown host"
