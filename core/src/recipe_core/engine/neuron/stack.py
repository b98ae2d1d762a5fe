"""The AWS Neuron stack that is installed: over PyTorch/XLA, native, or neither. Imports no torch.

Both stacks are called ``torch-neuronx``, and a third package of that name on the public index is empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from recipe_core.engine.machine.packages import instance, package

Neuron = Literal["legacy", "native"]
"""``legacy``: over PyTorch/XLA, up to torch 2.9; ``native``: TorchNeuron, a device of PyTorch itself."""

CACHE = "TORCH_NEURONX_NEFF_CACHE_DIR"
"""Environment variable with the folder of compiled graphs, for the native stack."""
HOST_COLLECTIVES = "TORCH_NEURONX_ENABLE_HOST_CC"
COMPILE_ONLY, EXTRACT_ONLY = "TORCH_NEURONX_COMPILE_ONLY", "NEURON_EXTRACT_GRAPHS_ONLY"
"""With one of these environment variables (native, over PyTorch/XLA), graphs are compiled and nothing is computed."""

WORKERS: dict[str, tuple[int, ...]] = {
    "trn1.2xlarge": (1, 2),
    "trn1.32xlarge": (1, 2, 8, 32),
    "trn1n.32xlarge": (1, 2, 8, 32),
}
"""Numbers of processes that the collectives of an instance type support, from AWS's guide to training."""

_NATIVE_FROM = (2, 12)  # TorchNeuron began with PyTorch 2.12; the XLA one ended with 2.9


def neuron() -> Neuron | None:
    """The installed Neuron stack; None also for a placeholder."""
    found = package("torch-neuronx")
    if found is None or found.placeholder:
        return None
    return "native" if found.release >= _NATIVE_FROM else "legacy"


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


def device_files(root: Path = Path("/")) -> list[Path]:
    """The devices that the driver shows in /dev."""
    return sorted(root.glob("dev/neuron[0-9]*"))
