"""Findings about Python, PyTorch and related packages: versions, compatibility, and a short computation."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from recipe_core.engine.machine import probe
from recipe_core.engine.machine.packages import Package, package
from recipe_core.hooks.finding import Finding, State

_TOPIC = "Packages"
_OLDEST_TORCH = (2, 9)


def package_findings() -> Iterator[Finding]:
    """Yield findings about Python, PyTorch and transformers."""
    python = f"Python {platform.python_version()} ({platform.machine()}, {platform.system()})"
    yield _finding("ok", python)
    torch = package("torch")
    yield from _torch(torch)
    if (transformers := package("transformers")) is not None:
        yield _finding("ok", f"transformers {transformers.version}")


def _torch(torch: Package | None) -> Iterator[Finding]:
    if torch is None:
        yield _finding("broken", "torch is not installed", "pip install 'torch>=2.9'")
        return
    if torch.release < _OLDEST_TORCH:
        yield _finding("broken", f"torch {torch.version} is too old", "pip install 'torch>=2.9'")
        return
    answer = probe.ask(probe.TORCH)
    if answer.problem:
        yield _finding(
            "broken", f"torch {torch.version} does not work: {answer.problem}",
            "install it anew in a fresh environment; if it names another package, that one does not fit this torch",
        )  # fmt: skip
        return
    facts = answer.found
    build = f"CUDA {facts['cuda']}" if facts["cuda"] else f"ROCm {facts['hip']}" if facts["hip"] else "CPU"
    where = f"; computes on {facts['count']} x {facts['device']}" if "device" in facts else "; computes on the CPU"
    yield _finding("ok", f"torch {facts['version']} ({build} build){where}")
    if facts["sum"] != probe.RIGHT_SUM:
        yield _finding("broken", f"a product of ones gave {facts['sum']}", "the device or its driver is damaged")
    if not facts["distributed"]:
        yield _finding("warning", "torch is built without torch.distributed", "only runs of one process will work")
    if "device" not in facts and not facts["bf16"]:
        yield _finding("note", "this processor has no bf16 instructions: train.precision=bf16_mixed computes in fp32")


def _finding(state: State, text: str, remedy: str = "") -> Finding:
    return Finding(_TOPIC, state, text, remedy)
