"""Devices, compilers and libraries of this machine; libraries, which may crash or hang on import, in a process of their
own. No torch here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

from recipe_core.hooks.train import Train

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
_LARGE = 50_000_000
"""Parameters from which the wait for the compiler is short beside the time that it saves."""


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


def compiles(train: Train, parameters: int, device: str) -> bool:
    """True if ``torch.compile`` compiles a model with this number of ``parameters`` for ``device`` (a device type)."""
    if train.compile is not None:
        return train.compile
    return device == "cuda" and parameters >= _LARGE and compiler_at_hand()


def compiler_at_hand() -> bool:
    """True if ``torch.compile`` can make kernels for a GPU: Triton builds their launchers with a C compiler."""
    named = os.environ.get("CC")
    return find_spec("triton") is not None and any(map(shutil.which, (named,) if named else ("cc", "gcc", "clang")))


def on_cuda(device: str) -> bool:
    """True if ``train.device`` is a GPU here."""
    return device == "cuda" or (device == "auto" and bool(gpus()))


def gpus() -> list[int]:
    """Memory of each GPU that the driver lists, in MiB."""
    command = shutil.which("nvidia-smi")
    return [] if command is None else list(_listed(command))


@cache
def _listed(command: str) -> tuple[int, ...]:
    query = [command, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return tuple(int(line) for line in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):  # no driver, no GPU, or a MIG slice without a figure
        return ()
