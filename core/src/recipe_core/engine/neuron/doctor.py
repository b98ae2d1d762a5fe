"""Findings about AWS Neuron for ``recipe doctor``. Imports no torch."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from recipe_core.engine.machine.environment import is_on
from recipe_core.engine.machine.packages import PLACEHOLDERS, Package, instance, package
from recipe_core.engine.neuron import stack
from recipe_core.engine.select import lacks_xla_engine
from recipe_core.hooks.finding import Finding, State

_TOPIC, _DEVICES, _VARIABLES = "Packages", "Devices", "Environment variables"
_GUIDE = "https://awsdocs-neuron.readthedocs-hosted.com"
_NATIVE_PYTHONS = ((3, 12), (3, 13), (3, 14))  # wheels of Neuron 2.33
_INSTANCES = {"legacy": ("trn1", "trn2"), "native": ("trn2", "trn3")}
_ROOT, _TOOLS = Path("/"), "opt/aws/neuron/bin"


def findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about Neuron, and about a PyTorch/XLA that no engine uses."""
    torch = package("torch")
    if package("torch-xla") is not None and lacks_xla_engine():
        yield _finding(
            "warning", "torch-xla is installed, and the plugin that runs on it is not", "pip install recipe-xla"
        )
    yield from _placeholders()
    yield from _fitting(torch)
    yield from _transformers()
    yield from _driver()
    yield from _compiler(environment)
    yield from _devices(environment)


def _placeholders() -> Iterator[Finding]:
    for name in PLACEHOLDERS:
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


def _fitting(torch: Package | None) -> Iterator[Finding]:
    kind, found = stack.neuron(), package("torch-neuronx")
    if kind is None or found is None:
        if found is None and instance().startswith(("trn", "inf")):
            yield _finding(
                "broken", f"this is a {instance()}, and torch-neuronx is not installed",
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
    machine = instance()
    if machine.startswith("trn") and not machine.startswith(_INSTANCES[kind]):
        other = "the native stack (torch 2.13)" if kind == "legacy" else "the stack over PyTorch/XLA (torch 2.9)"
        yield _finding(
            "broken", f"the {kind} Neuron stack does not know {machine}",
            f"install {other} in an environment of its own: both packages are called torch-neuronx",
        )  # fmt: skip


def _transformers() -> Iterator[Finding]:
    found = package("transformers")
    if found is None:
        return
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


def _driver() -> Iterator[Finding]:
    devices = stack.device_files(_ROOT)
    module = _ROOT / "sys/module/neuron"
    version = _first_line(module / "version")
    expected = instance().startswith(("trn", "inf")) or stack.neuron() is not None
    if devices:
        yield Finding(_DEVICES, "ok", f"{len(devices)} Neuron devices, driver {version or 'of unknown version'}")
        if not os.access(devices[0], os.R_OK | os.W_OK):
            yield Finding(_DEVICES, "broken", f"{devices[0]} may not be opened by this user", "ask for access to it")
        if shutil.which("neuron-ls") is None and not (_ROOT / _TOOLS / "neuron-ls").exists():
            yield Finding(_DEVICES, "warning", "neuron-ls is not installed", "install the package aws-neuronx-tools")
    elif module.exists():
        yield Finding(
            _DEVICES, "broken", f"the Neuron driver {version} is loaded and shows no device",
            "in a container, hand the devices in (--device=/dev/neuron0 ...); else see dmesg",
        )  # fmt: skip
    elif expected:
        yield Finding(
            _DEVICES, "broken" if instance().startswith(("trn", "inf")) else "warning",
            "no Neuron driver is loaded (no /dev/neuron0)",
            "install aws-neuronx-dkms with the headers of this kernel, then `sudo modprobe neuron`",
        )  # fmt: skip
    else:
        yield Finding(_DEVICES, "note", "no Neuron device and no Neuron driver")


def _compiler(env: Mapping[str, str]) -> Iterator[Finding]:
    if is_on(env, stack.EXTRACT_ONLY):
        yield Finding(
            _VARIABLES, "broken", "NEURON_EXTRACT_GRAPHS_ONLY is set: nothing is computed, and every loss is wrong",
            "unset it; `recipe precompile` sets it for as long as it needs it",
        )  # fmt: skip
    if is_on(env, stack.COMPILE_ONLY):
        yield Finding(
            _VARIABLES, "broken", "TORCH_NEURONX_COMPILE_ONLY is set: graphs are compiled and nothing is computed",
            "unset it; `recipe precompile` sets it for as long as it needs it",
        )  # fmt: skip
    if "BUCKET_CAP_MB" in env:
        yield Finding(
            _VARIABLES, "warning", "BUCKET_CAP_MB is no longer read", "set ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB instead"
        )
    if stack.neuron() == "native" and "NEURON_COMPILE_CACHE_URL" in env:
        yield Finding(
            _VARIABLES, "warning", "NEURON_COMPILE_CACHE_URL is that of the stack over XLA",
            "the native stack keeps what it compiled in TORCH_NEURONX_NEFF_CACHE_DIR",
        )  # fmt: skip


def _devices(env: Mapping[str, str]) -> Iterator[Finding]:
    if stack.neuron() == "native" and env.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Finding(
            _VARIABLES, "broken", "TORCH_DEVICE_BACKEND_AUTOLOAD=0: PyTorch does not find the device neuron", "unset it"
        )
    for name in ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "USE_TORCH_XLA"):
        if name in env:
            yield Finding(_VARIABLES, "note", f"{name}={env[name]}")


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").split("\n")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _short(found: Package) -> str:
    return ".".join(map(str, found.release))


def _finding(state: State, text: str, remedy: str = "") -> Finding:
    return Finding(_TOPIC, state, text, remedy)
