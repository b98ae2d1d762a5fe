"""Try a library in a process of its own, which may crash or hang on import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TORCH = """
import json
import torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
found["distributed"] = torch.distributed.is_available()
found["bf16"] = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
device = torch.accelerator.current_accelerator(check_available=True)
if device is not None:
    found["device"], found["count"] = device.type, torch.accelerator.device_count()
one = torch.ones(8, 8, device=device or "cpu")
found["sum"] = float((one @ one).sum().cpu())
print("FOUND" + json.dumps(found))
"""
RIGHT_SUM = 512.0
"""The expected ``sum`` of these programs."""

# With these, a library would wait for other ranks.
_OF_A_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RECIPE_STORE")
_TIMEOUT = 180.0


@dataclass(frozen=True)
class ProbeAnswer:
    """The values that a program printed, or a ``problem``."""

    found: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def ask(program: str, variables: Mapping[str, str] | None = None, timeout: float = _TIMEOUT) -> ProbeAnswer:
    """Run ``program`` in a new Python with further environment ``variables``; read the JSON after ``FOUND``."""
    command = [sys.executable, "-c", program]
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
    environment = {**inherited, **(variables or {})}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return ProbeAnswer(problem=f"no answer within {timeout:.0f} seconds")
    for line in done.stdout.splitlines():
        if line.startswith("FOUND"):
            return ProbeAnswer(json.loads(line.removeprefix("FOUND")))
    if done.returncode < 0:
        return ProbeAnswer(problem=f"the process was ended by signal {-done.returncode}")
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return ProbeAnswer(problem=lines[-1].strip() if lines else f"the process ended with exit code {done.returncode}")
