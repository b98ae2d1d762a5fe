"""Python, PyTorch and the packages beside it: their versions, whether they fit each other, and whether they work."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from recipe_core.cli.doctor import probe
from recipe_core.cli.doctor.finding import Finding, State
from recipe_core.engine import stack
from recipe_core.engine.stack import Package, package

_TOPIC = "Packages"
_GUIDE = "https://awsdocs-neuron.readthedocs-hosted.com"
_OLDEST_TORCH = (2, 9)
_NATIVE_PYTHONS = ((3, 12), (3, 13), (3, 14))  # wheels of Neuron 2.33
_INSTANCES = {"legacy": ("trn1", "trn2"), "native": ("trn2", "trn3")}


def package_findings() -> Iterator[Finding]:
    """Every package that a run may meet; those that are not installed only where something needs them."""
    python = f"Python {platform.python_version()} ({platform.machine()}, {platform.system()})"
    yield _finding("ok", python)
    torch = package("torch")
    yield from _torch(torch)
    yield from _xla(torch)
    yield from _placeholders()
    yield from _neuron(torch)
    yield from _transformers()


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


def _xla(torch: Package | None) -> Iterator[Finding]:
    xla = package("torch-xla")
    if xla is None:
        yield _finding("note", "torch-xla is not installed: native runs only")
        return
    if torch is not None and xla.release != torch.release:
        yield _finding(
            "broken", f"torch-xla {xla.version} is built for torch {_short(xla)}, and this is torch {torch.version}",
            f"pip install 'torch=={_short(xla)}.*', or pip uninstall torch-xla",
        )  # fmt: skip
        return
    answer = probe.ask(probe.XLA, {} if stack.neuron() == "legacy" else _cpu_by_default())
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


def _placeholders() -> Iterator[Finding]:
    """AWS's packages: the real ones, and those that only have the name."""
    for name in stack.PLACEHOLDERS:
        found = package(name)
        if found is None:
            continue
        if found.placeholder:
            yield _finding(
                "broken", f"{name} {found.version} is a placeholder: an empty package of that name",
                f"pip uninstall {name}; the real one is in AWS's own index: {_GUIDE}",
            )  # fmt: skip
        else:
            yield _finding("ok", f"{name} {found.version}, the real one")


def _neuron(torch: Package | None) -> Iterator[Finding]:
    """Whether the Neuron stack fits torch, Python and the instance."""
    kind, found = stack.neuron(), package("torch-neuronx")
    if kind is None or found is None:
        if found is None and stack.instance().startswith(("trn", "inf")):
            yield _finding(
                "broken", f"this is a {stack.instance()}, and torch-neuronx is not installed",
                f"install it from AWS's own index, as {_GUIDE} says",
            )  # fmt: skip
        return
    if torch is not None and found.release != torch.release:
        yield _finding(
            "broken", f"torch-neuronx {found.version} needs torch {_short(found)}, and this is torch {torch.version}",
            f"pip install 'torch=={_short(found)}.*'",
        )  # fmt: skip
    if kind == "legacy" and package("torch-xla") is None:
        yield _finding(
            "broken", f"torch-neuronx {found.version} runs over torch-xla, which is not installed",
            f"pip install 'torch-xla=={_short(found)}.*'",
        )  # fmt: skip
    if kind == "native" and sys.version_info[:2] not in _NATIVE_PYTHONS:
        yield _finding("warning", "the native stack has wheels for Python 3.12 to 3.14", "make an environment of one")
    if package("neuronx-cc") is None:
        yield _finding("broken", "neuronx-cc, the compiler, is not installed", f"install it as {_GUIDE} says")
    instance = stack.instance()
    if instance.startswith("trn") and not instance.startswith(_INSTANCES[kind]):
        other = "the native stack (torch 2.13)" if kind == "legacy" else "the stack over PyTorch/XLA (torch 2.9)"
        yield _finding(
            "broken", f"the {kind} Neuron stack does not know {instance}",
            f"install {other} in an environment of its own: both packages are called torch-neuronx",
        )  # fmt: skip


def _transformers() -> Iterator[Finding]:
    """transformers, and what of the others it clashes with."""
    found = package("transformers")
    if found is None:
        return
    yield _finding("ok", f"transformers {found.version}")
    distributed = package("neuronx-distributed")
    if distributed is not None and not distributed.placeholder and found.release[0] >= 5:
        yield _finding(
            "warning", f"neuronx-distributed {distributed.version} imports as a whole only beside transformers 4",
            "pip install 'transformers<5'; its parallel layers, which recipe uses, work beside both",
        )  # fmt: skip
    if package("torch-xla") is not None and os.environ.get("USE_TORCH_XLA", "").lower() not in ("0", "false", "no"):
        yield _finding(
            "warning", "transformers takes every run for one on XLA while torch-xla is installed",
            "`recipe run` sets USE_TORCH_XLA=0 for native runs; set it yourself for other programs",
        )  # fmt: skip
    if find_spec("torch_neuronx") is not None and stack.neuron() != "legacy":
        yield _finding(
            "warning", "transformers.training_args starts a process group `xla` by itself where a module torch_neuronx "
            "can be imported and torchrun's variables are set",
            "uninstall torch-neuronx where it is not meant to be used" if stack.neuron() is None
            else "import transformers.training_args after the process group was made",
        )  # fmt: skip


def _short(found: Package) -> str:
    return ".".join(map(str, found.release))


def _finding(state: State, text: str, remedy: str = "") -> Finding:
    return Finding(_TOPIC, state, text, remedy)
