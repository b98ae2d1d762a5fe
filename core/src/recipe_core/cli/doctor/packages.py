"""Python, PyTorch and the packages beside it: their versions, whether they fit each other, and whether they work."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from recipe_core.engine import probe
from recipe_core.engine.stack import Package, package
from recipe_core.hooks.finding import Finding, State

_TOPIC = "Packages"
_OLDEST_TORCH = (2, 9)


def package_findings() -> Iterator[Finding]:
    """Every package that a run may meet; those that are not installed only where something needs them."""
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
    found = answer.found
    build = f"CUDA {found['cuda']}" if found["cuda"] else f"ROCm {found['hip']}" if found["hip"] else "CPU"
    where = f"; computes on {found['count']} x {found['device']}" if "device" in found else "; computes on the CPU"
    yield _finding("ok", f"torch {found['version']} ({build} build){where}")
    if found["sum"] != probe.RIGHT_SUM:
        yield _finding("broken", f"a product of ones gave {found['sum']}", "the device or its driver is damaged")
    if not found["distributed"]:
        yield _finding("warning", "torch is built without torch.distributed", "only runs of one process will work")
    if "device" not in found and not found["bf16"]:
        yield _finding("note", "this processor has no bf16 instructions: train.precision=bf16_mixed computes in fp32")


def _finding(state: State, text: str, remedy: str = "") -> Finding:
    return Finding(_TOPIC, state, text, remedy)
