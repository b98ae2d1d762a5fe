"""Which accelerator stack is installed: AWS Neuron over PyTorch/XLA, AWS Neuron in native PyTorch, or neither.

Both Neuron stacks are called ``torch-neuronx``, and a third package of that name on the public index is empty. They are
told apart by what the installers left behind: nothing is imported.
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
"""AWS's packages, which come from its own index; packages of these names on the public one are empty."""

NXD_WAY_OUT = (
    "install it from AWS's own index, as https://awsdocs-neuron.readthedocs-hosted.com says, or take layout=ddp, or "
    "train.engine=native"
)
"""The way out where neuronx-distributed is needed and missing."""

WORKERS: dict[str, tuple[int, ...]] = {
    "trn1.2xlarge": (1, 2),
    "trn1.32xlarge": (1, 2, 8, 32),
    "trn1n.32xlarge": (1, 2, 8, 32),
}
"""How many processes the collectives of an instance type take, as AWS's guide to training lists them."""

_NATIVE_FROM = (2, 12)  # TorchNeuron began with PyTorch 2.12; the XLA one ended with 2.9
_SUBSTANCE = 20_000  # bytes of code; the placeholders have a hundred, the real ones megabytes
_PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    name: str
    version: str
    placeholder: bool
    """One of AWS's names with nothing behind it."""

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version; zeros where the version does not begin with them."""
        found = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)


def package(name: str) -> Package | None:
    """The installed distribution ``name``; None where there is none."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return Package(name, found.version, name in PLACEHOLDERS and _is_empty(found))


def neuron() -> Neuron | None:
    """The Neuron stack that is installed; None where there is none, or only a placeholder."""
    found = package("torch-neuronx")
    if found is None or found.placeholder:
        return None
    return "native" if found.release >= _NATIVE_FROM else "legacy"


def imports_choose_device() -> bool:
    """True if transformers decides on import what it runs on (beside torch-xla): each process has to import it."""
    return find_spec("torch_xla") is not None


def nxd_problems() -> Iterator[str]:
    """Why neuronx-distributed cannot divide layers here: it is not installed, or only its name is."""
    found = package("neuronx-distributed")
    if found is None:
        yield f"neuronx-distributed, which divides layers on Neuron over PyTorch/XLA, is not installed; {NXD_WAY_OUT}"
    elif found.placeholder:
        yield (
            f"neuronx-distributed {found.version} is here by name alone, an empty package of the public index, and the "
            f"real one divides layers on Neuron over PyTorch/XLA; pip uninstall neuronx-distributed, then {NXD_WAY_OUT}"
        )


def at_hand(device: str, engine: str = "auto") -> Neuron | None:
    """The Neuron stack that a run would use.

    Args:
        device: ``train.device``.
        engine: ``auto``, ``native`` or ``xla``, where the user chose one.
    """
    found = neuron()
    fitting = {"legacy": ("auto", "xla", "neuron"), "native": ("auto", "neuron")}
    if found is None or device not in fitting[found]:
        return None
    if engine != "auto" and engine != {"legacy": "xla", "native": "native"}[found]:
        return None
    return found


def places(device: str, engine: str) -> tuple[int, str] | None:
    """The most processes that a Trainium instance takes, and what each has; None on other machines."""
    counts = WORKERS.get(instance()) if at_hand(device, engine) else None
    return (counts[-1], "NeuronCores") if counts else None


def instance() -> str:
    """The EC2 instance type, as the hypervisor tells it (``trn1.32xlarge``); elsewhere the maker's word, or ``""``."""
    try:
        return _PRODUCT.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):  # a container or another system, which hide it
        return ""


def logical_core_size() -> int:
    """How many physical NeuronCores make one that a process sees: from trn2 on two, unless it is told otherwise."""
    default = "2" if instance().startswith(("trn2", "trn3")) else "1"
    return int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", default))


def worker_problems(stack: Neuron | None, processes: int) -> Iterator[str]:
    """Problems with so many processes at once on this machine under ``stack``."""
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
    """True if a distribution holds no code to speak of; an editable one has its code elsewhere."""
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
