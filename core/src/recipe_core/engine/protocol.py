"""Where a run executes: the device of this rank and the other ranks. What differs between devices ends here."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from recipe_core.engine.select import chosen
from recipe_core.hooks.train import Precision, Train
from recipe_core.launch.failures import explain

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from recipe_core.layouts.parallel import Carrier
    from recipe_core.xla.collectives import Collectives

__all__ = ["Engine", "SideRanks", "explain", "start"]

Value = TypeVar("Value")


class SideRanks(Protocol):
    """The ranks as a second thread meets them, without meeting the first one's collectives."""

    rank: int
    world_size: int
    group: ProcessGroup | None
    """gloo, for what lives on the CPU; None where a run has one process."""

    def gather(self, value: Value) -> list[Value]:
        """Each rank's ``value`` (small, picklable), in rank order. All ranks call it."""
        ...


class Engine(Protocol):
    """One rank's device, and what it can do together with the other ranks.

    What is said to be called by all ranks must be called by all of them, in the same order.
    """

    device: torch.device
    rank: int
    world_size: int
    local_rank: int

    @property
    def collectives(self) -> Collectives | None:
        """How ranks exchange what is on their devices, where PyTorch's own functions do not serve (PyTorch/XLA)."""
        ...

    @property
    def devices(self) -> int:
        """What the layout's axes count: the ranks, or all devices where one process drives them."""
        ...

    @property
    def autocast_device(self) -> str:
        """Device type for ``torch.autocast``."""
        ...

    def mesh(self, axes: dict[str, int]) -> DeviceMesh | None:
        """The ranks as a grid with named axes, last axis fastest; None for a run of one process. All ranks call it.

        Raises:
            ConfigError: the axes do not multiply to the number of ranks.
        """
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        ...

    def end_step(self) -> None:
        """Mark the end of a training step, for devices that gather operations before they run them."""
        ...

    def read(self, tensor: Tensor) -> Tensor:
        """``tensor``, for the host to look at; brought there, where operations are gathered before they run."""
        ...

    def counters(self) -> dict[str, float]:
        """What the device's compiler did so far, for metrics.jsonl; empty where there is none."""
        ...

    def carrier(self) -> Carrier | None:
        """How batches get to the device; None: as any tensor."""
        ...

    def peak_memory(self) -> int | None:
        """Most bytes used so far: allocated on the device, or resident memory of the process on the CPU."""
        ...

    def peak_flops(self, precision: Precision) -> float | None:
        """Floating-point operations per second of the device's data sheet, dense; None where it is not known."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks. All ranks call it."""
        ...

    def mean(self, tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """Mean over the ranks of ``group`` (a mesh axis'; None: all), element by element. All of these ranks call it.

        Returns:
            A new tensor of the same shape on the same device; half precision becomes fp32 and integers a floating
            point type, also on one rank.
        """
        ...

    def any(self, flag: bool) -> bool:
        """True on all ranks when ``flag`` is true on one. All ranks call it; the device need not be waited for."""
        ...

    def gather(self, value: Value) -> list[Value]:
        """Each rank's ``value`` (small, picklable), in rank order. All ranks call it."""
        ...

    def broadcast(self, value: Value) -> Value:
        """Rank 0's ``value`` (small, picklable). All ranks call it."""
        ...

    def side(self) -> SideRanks:
        """The same ranks with a process group of their own, for one other thread of each. All ranks call it."""
        ...

    def seed(self, number: int) -> None:
        """Seed the generators of PyTorch on the CPU and on the device."""
        ...


def start(train: Train, *, one_process: bool = False) -> AbstractContextManager[Engine]:
    """The engine that drives ``train.device``. Entering it meets the other ranks, leaving it lets them go.

    ``one_process``: this process drives all devices of the run, see :func:`recipe_core.engine.select.one_process`.

    Raises:
        ConfigError: the device is not there, or there are fewer of it than ranks on this machine.
        LaunchError: on entering, another rank did not come within ``train.timeout`` seconds.
    """
    if chosen(train) == "xla":
        from recipe_core.xla.engine import XlaEngine

        return XlaEngine(train, one_process=one_process)
    from recipe_core.engine.native import NativeEngine

    # transformers, which would else take an installed torch-xla for what the run computes on.
    os.environ.setdefault("USE_TORCH_XLA", "0")
    return NativeEngine(train.device, train.timeout)
