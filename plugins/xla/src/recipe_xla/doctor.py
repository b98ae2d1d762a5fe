"""Findings about PyTorch/XLA for ``recipe doctor``, which tries the library in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from recipe_core import Finding
from recipe_core.engine.machine import probe
from recipe_core.engine.machine.environment import is_on
from recipe_core.engine.machine.packages import Package, package
from recipe_core.engine.neuron import stack
from recipe_core.hooks.finding import State
from recipe_xla.machine import REFUSED

_TOPIC, _VARIABLES = "Packages", "Environment variables"
_PROGRAM = """
import json
import torch, torch_xla
device = torch_xla.device()
one = torch.ones(8, 8, device=device)
found = {"version": torch_xla.__version__, "sum": float((one @ one).sum().cpu())}
import torch_xla.runtime as runtime
found["device"], found["count"] = runtime.device_type(), runtime.global_runtime_device_count()
print("FOUND" + json.dumps(found))
"""


def findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about torch-xla and the environment variables that it reads."""
    yield from _package(package("torch"))
    yield from _variables(environment)


def _package(torch: Package | None) -> Iterator[Finding]:
    xla = package("torch-xla")
    if xla is None:
        yield _finding("note", "torch-xla is not installed: checkpoints convert, and no run computes with it")
        return
    if torch is not None and xla.release != torch.release:
        yield _finding(
            "broken", f"torch-xla {xla.version} is built for torch {_short(xla)}, and this is torch {torch.version}",
            f"pip install 'torch=={_short(xla)}.*', or pip uninstall torch-xla",
        )  # fmt: skip
        return
    answer = probe.ask(_PROGRAM, {} if stack.neuron() == "legacy" else _cpu_by_default())
    if answer.problem:
        yield _finding(
            "broken", f"torch-xla {xla.version} does not work: {answer.problem}",
            "set PJRT_DEVICE to what is there (CPU, NEURON, TPU), or install torch-xla anew",
        )  # fmt: skip
    elif answer.found["sum"] != probe.RIGHT_SUM:
        yield _finding("broken", f"torch-xla: a product of ones gave {answer.found['sum']}", "reinstall torch-xla")
    else:
        device = f"{answer.found['count']} x {answer.found['device']}"
        yield _finding("ok", f"torch-xla {xla.version}; computes on {device}")


def _cpu_by_default() -> Mapping[str, str]:
    return {} if "PJRT_DEVICE" in os.environ else {"PJRT_DEVICE": "CPU"}


def _variables(env: Mapping[str, str]) -> Iterator[Finding]:
    for name in REFUSED:
        if is_on(env, name):
            yield Finding(
                _VARIABLES, "broken", f"{name}={env[name]}: it makes bf16 of all fp32, unseen; runs refuse it",
                f"unset {name}; take train.precision=bf16 (or bf16_mixed), which says what it does",
            )  # fmt: skip
    if "PJRT_DEVICE" in env and package("torch-xla") is None:
        text = f"PJRT_DEVICE={env['PJRT_DEVICE']}: torch-xla, which reads it, is not installed"
        yield Finding(_VARIABLES, "note", text)
    if stack.neuron() == "legacy" and env.get("PJRT_DEVICE", "NEURON") != "NEURON":
        text = f"PJRT_DEVICE={env['PJRT_DEVICE']}: XLA will not use Trainium"
        yield Finding(_VARIABLES, "warning", text, "unset PJRT_DEVICE")


def _short(found: Package) -> str:
    return ".".join(map(str, found.release))


def _finding(state: State, text: str, remedy: str = "") -> Finding:
    return Finding(_TOPIC, state, text, remedy)
