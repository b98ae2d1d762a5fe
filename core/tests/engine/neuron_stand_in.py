"""A stand-in for Trainium's device ``neuron``, in Python: as strict as the documentation of the real one.

It is an out-of-tree device (PrivateUse1), as TorchNeuron is. A tensor on it wraps one of the CPU, which does the work.
It refuses float64, integers beyond 32 bits and a device with a number; ``notes`` says in which order things happened.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _DummyPrivateUse1Hook, _setup_privateuseone_for_python_backend

notes: list[str] = []
_LARGEST = 2**31


class Hooks(_DummyPrivateUse1Hook):
    """The device's guard, which PyTorch asks for in C++."""

    def is_available(self) -> bool:
        return True


class Module:
    """``torch.neuron``."""

    def __init__(self) -> None:
        self.touched = False

    def is_available(self) -> bool:
        notes.append("available?")
        return True

    def is_initialized(self) -> bool:
        return self.touched

    def set_device(self, device: Any) -> None:
        raise RuntimeError(f"this device has no number; asked for {device}")

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 2  # NeuronCores of the machine, of which the runtime gives this process one

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def synchronize(self, device: Any = None) -> None:
        pass

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()  # random numbers come from the CPU

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


class OnDevice(torch.Tensor):
    """A tensor on the device, around one of the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> OnDevice:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device="neuron:0",
        )

    def __init__(self, raw: torch.Tensor) -> None:
        self.raw = raw

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, named = tree_map(_unwrapped, args), tree_map(_unwrapped, dict(kwargs or {}))
        target = torch.device(named["device"]) if named.get("device") is not None else None
        if target is not None:
            named["device"] = "cpu"
        found = func(*given, **named)
        if target is not None and target.type == "cpu":
            return found
        if "empty" in str(func):  # memory as it was found, which means nothing yet
            return tree_map(lambda value: OnDevice(value) if isinstance(value, torch.Tensor) else value, found)
        return tree_map(_wrapped, found)


def _unwrapped(value: Any) -> Any:
    return value.raw if isinstance(value, OnDevice) else value


def _wrapped(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, OnDevice):
        return value
    if value.dtype == torch.float64:
        raise TypeError("this device has no float64")
    if (
        value.dtype == torch.int64
        and value.numel()
        and not -_LARGEST <= int(value.min()) <= int(value.max()) < _LARGEST
    ):
        raise OverflowError("this device keeps int64 in 32 bits")
    return OnDevice(value)


def _new(raw: torch.Tensor, device: Any) -> torch.Tensor:
    if device is not None and torch.device(device).index not in (None, 0):
        raise RuntimeError(f"this device has no number; asked for {device}")
    if not torch.neuron.touched:  # type: ignore[attr-defined]
        torch.neuron.touched = True  # type: ignore[attr-defined]
        notes.append("touched")
    return _wrapped(raw)  # type: ignore[no-any-return]


def _empty(
    size: Any,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: Any = None,
    memory_format: Any = None,
) -> torch.Tensor:
    return _new(torch.zeros(size, dtype=dtype), device)


def _empty_strided(
    size: Any, stride: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
) -> torch.Tensor:
    return _new(torch.empty_strided(size, stride, dtype=dtype).zero_(), device)


_library = torch.library.Library("aten", "IMPL")


def install() -> None:
    """Make the device and its process group known to PyTorch, in this process; once."""
    _setup_privateuseone_for_python_backend("neuron", Module(), Hooks())
    _library.impl("empty.memory_format", _empty, "PrivateUse1")
    _library.impl("empty_strided", _empty_strided, "PrivateUse1")

    def group(store: Any, rank: int, size: int, timeout: Any) -> Any:
        notes.append("group")
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("neuron", group, devices=["neuron"])
    # The guard of a device in Python has no way to wait, and every operation here is done when it returns.
    torch.accelerator.synchronize = lambda device=None: None
