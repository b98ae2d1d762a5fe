"""The device of a rank, by the name in ``train.device``, and its backend of ``torch.distributed``."""

from __future__ import annotations

import torch
import torch.distributed as dist

from recipe_core.engine.machine.peaks import Peak, known_peak
from recipe_core.engine.neuron import device as neuron
from recipe_core.engine.neuron.peaks import trainium_instance_peak
from recipe_core.errors import ConfigError
from recipe_core.launch.worker import Worker

# For other devices torch.distributed knows the backend that an extension registered.
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", neuron.NAME: neuron.NAME, "hpu": "hccl", "xpu": "xccl"}

# Devices without an index: the runtime gives each process its own, by local rank.
_UNNUMBERED = ("cpu", neuron.NAME, "hpu")


def device_kind(name: str) -> str:
    """The device type that ``train.device`` names on this machine; does not touch the devices.

    Raises:
        ConfigError: the machine has no such device.
    """
    if name in ("auto", neuron.NAME) and neuron.is_here():
        return neuron.NAME
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    available = ["cpu"] if accelerator is None else [accelerator.type, "cpu"]
    kind = available[0] if name == "auto" else name
    if kind not in available:
        raise ConfigError(
            f"train.device: {name!r} is not available here (found: {', '.join(available)}); set train.device=auto, "
            f"or install the PyTorch that supports it"
        )
    return kind


def device_of(name: str, me: Worker | None) -> torch.device:
    """Return the device of this rank, ``me``.

    Raises:
        ConfigError: the machine has no such device, or fewer than ranks.
    """
    kind = device_kind(name)
    if kind in _UNNUMBERED:
        return torch.device(kind)
    return torch.device(kind, 0 if me is None else _index(kind, me))


def _index(kind: str, me: Worker) -> int:
    count = torch.accelerator.device_count()
    if me.launcher == "srun" and count == 1:
        return 0  # Slurm shows each task its own device alone (--gpus-per-task); two on one are refused by NCCL
    if me.local_world_size > count:
        raise ConfigError(
            f"train.device: {me.local_world_size} processes on this machine need as many {kind} devices, and it has "
            f"{count}; start {count}, or set train.device=cpu"
        )
    return me.local_rank


def backend_of(kind: str) -> str:
    """Return the backends of a process group: that of the device, and gloo for flags and Python objects on the CPU."""
    if kind == "cpu":
        return "gloo"
    try:
        return f"cpu:gloo,{kind}:{_BACKENDS.get(kind) or dist.get_default_backend_for_device(kind)}"
    except ValueError:
        raise ConfigError(
            f"train.device: {kind} has no backend for several processes; start one process, or set train.device=cpu"
        ) from None


def peak_of(device: torch.device) -> Peak | None:
    """Return the peak FLOP/s of a device; None if not known."""
    if device.type == neuron.NAME:
        return trainium_instance_peak()
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return known_peak(name()) if name is not None else None
