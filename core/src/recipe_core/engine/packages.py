"""The accelerator stack that is installed: AWS Neuron over PyTorch/XLA, native AWS Neuron, or neither.

Both Neuron stacks are called ``torch-neuronx``, and a third package of that name on the public index is empty.
Installed files tell them apart; nothing is imported.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

Neuron = Literal["legacy", "native"]
"""``legacy``: over PyTorch/XLA, up to torch 2.9; ``native``: TorchNeuron, a device of PyTorch itself."""

PLACEHOLDERS = ("torch-neuronx", "neuronx-distributed", "neuronx-cc")
"""Packages of AWS's own index; those of the same names on the public index are empty."""

NXD_REMEDY = (
    "install it from AWS's own index, as https://awsdocs-neuron.readthedocs-hosted.com says, or take layout=ddp, or "
    "train.engine=native"
)
"""Advice if neuronx-distributed is needed and missing."""

WORKERS: dict[str, tuple[int, ...]] = {
    "trn1.2xlarge": (1, 2),
    "trn1.32xlarge": (1, 2, 8, 32),
    "trn1n.32xlarge": (1, 2, 8, 32),
}
"""Numbers of processes that the collectives of an instance type support, from AWS's guide to training."""

_NATIVE_FROM = (2, 12)  # TorchNeuron began with PyTorch 2.12; the XLA one ended with 2.9
_SUBSTANCE = 20_000  # bytes of code; the placeholders have a hundred, the real ones megabytes
_PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    name: str
    version: str
    placeholder: bool
    """An empty package with one of AWS's names."""

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; zeros if the version does not begin with them."""
        match = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)


def package(name: str) -> Package | None:
    """The installed distribution ``name``, or None."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return Package(name, found.version, name in PLACEHOLDERS and _is_empty(found))


def neuron() -> Neuron | None:
    """The installed Neuron stack; None also for a placeholder."""
    found = package("torch-neuronx")
    if found is None or found.placeholder:
        return None
    return "native" if found.release >= _NATIVE_FROM else "legacy"


def imports_choose_device() -> bool:
    """True if transformers chooses its device on import (with torch-xla): each process must import it by itself."""
    return find_spec("torch_xla") is not None


def nxd_problems() -> Iterator[str]:
    """Problems with neuronx-distributed: it is not installed, or is a placeholder."""
    found = package("neuronx-distributed")
    if found is None:
        yield f"neuronx-distributed, which divides layers on Neuron over PyTorch/XLA, is not installed; {NXD_REMEDY}"
    elif found.placeholder:
        yield (
            f"neuronx-distributed {found.version} is here by name alone, an empty package of the public index, and the "
            f"real one divides layers on Neuron over PyTorch/XLA; pip uninstall neuronx-distributed, then {NXD_REMEDY}"
        )


def at_hand(device: str, engine: str = "auto") -> Neuron | None:
    """The Neuron stack that a run would use, or None.

    Args:
        device: ``train.device``.
        engine: ``auto``, ``native`` or ``xla``.
    """
    found = neuron()
    fitting = {"legacy": ("auto", "xla", "neuron"), "native": ("auto", "neuron")}
    if found is None or device not in fitting[found]:
        return None
    if engine != "auto" and engine != {"legacy": "xla", "native": "native"}[found]:
        return None
    return found


def places(device: str, engine: str) -> tuple[int, str] | None:
    """The most processes that a Trainium instance supports, and the name of their devices; None on other machines."""
    counts = WORKERS.get(instance()) if at_hand(device, engine) else None
    return (counts[-1], "NeuronCores") if counts else None


def instance() -> str:
    """The EC2 instance type by the hypervisor (``trn1.32xlarge``); elsewhere the vendor's product name, or ``""``."""
    try:
        return _PRODUCT.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):  # hidden in a container or by another system
        return ""


def logical_core_size() -> int:
    """Physical NeuronCores of a logical one: by default two from trn2 on."""
    default = "2" if instance().startswith(("trn2", "trn3")) else "1"
    return int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", default))


def worker_problems(stack: Neuron | None, processes: int) -> Iterator[str]:
    """Problems with this number of ``processes`` on this machine under ``stack``."""
    kind = instance()
    fitting = WORKERS.get(kind)
    if stack is None or fitting is None or processes in fitting:
        return
    taken = f"{', '.join(map(str, fitting[:-1]))} or {fitting[-1]}"
    nearest = max((count for count in fitting if count < processes), default=fitting[0])
    yield (
        f"--processes: a {kind} takes {taken} processes, and this run has {processes} on it: its NeuronCores are "
        f"connected for no other number; start {nearest}"
    )


def _is_empty(found: metadata.Distribution) -> bool:
    if '"editable"' in (found.read_text("direct_url.json") or ""):
        return False
    size = 0
    for file in found.files or ():
        if ".dist-info" in file.parts[0] or ".egg-info" in file.parts[0]:
            continue
        if file.suffix in (".so", ".pyd"):
            return False
        size += _size(file)
    return size < _SUBSTANCE


def _size(file: metadata.PackagePath) -> int:
    try:
        return Path(str(file.locate())).stat().st_size
    except OSError:
        return 0
