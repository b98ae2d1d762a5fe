"""Where a run executes: the device of this rank and the other ranks. What differs between devices ends here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from recipe_core.hooks.specs import EngineSpec, Layout, Part, load
from recipe_core.hooks.train import Precision, Train
from recipe_core.launch.failures import explain

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from recipe_core.engine.compiled import Compiler
    from recipe_core.engine.loader import DeviceLoader, Request

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
    traced: bool
    """Operations are gathered into graphs, which run at :meth:`end_step` or when the host reads a value. Such an engine
    has random numbers and rounding of its own, and PyTorch's collectives do not reach its tensors."""

    @property
    def compiler(self) -> Compiler:
        """The compiler that graphs of this device go through."""
        ...

    @property
    def devices(self) -> int:
        """The number that the layout's axes multiply to: ranks, or all devices where one process drives them."""
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
        """Counts of the device's compiler so far, for metrics.jsonl; empty where there is none."""
        ...

    def device_loader(self, request: Request, train: Train) -> DeviceLoader:
        """A loader that moves micro batches to the device; ``request`` asks the thread that reads them."""
        ...

    def to_host(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Copies that a thread can write while training goes on, brought to the host together.

        Shards of a DTensor may stay on a device whose collectives the thread can use. A copy may be a
        :class:`recipe_core.checkpoint.lazy.Lazy` where several devices hold the tensor.
        """
        ...

    def fillable(self, tensor: Tensor) -> Tensor:
        """``tensor``, or room on the host that a checkpoint can fill in its place."""
        ...

    def stacked(self, values: Sequence[Tensor]) -> Tensor:
        """Scalars as one tensor, in the widest type that the device has."""
        ...

    def total(self, counts: Sequence[Tensor]) -> Tensor:
        """Sum of scalar counts, which may need more than the 32 bits that some devices have."""
        ...

    def recompute(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward``, which keeps only its inputs and runs again in backward, with the same random numbers."""
        ...

    def compile_options(self) -> Mapping[str, Any]:
        """Arguments of ``torch.compile`` for the device."""
        ...

    def average_gradients(self, parameters: Iterable[nn.Parameter], group: Any = None) -> None:
        """Make each gradient the mean over the ranks of ``group`` (a mesh axis'; None: all). All of these call it."""
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

    def largest(self, *values: int) -> Callable[[], list[int]]:
        """Begin to find the largest of each value over all ranks; call the result to wait for it, on the host alone.

        All ranks call both, the second in the order of the first.
        """
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

    def fork_rng(self, number: int) -> AbstractContextManager[None]:
        """Random numbers that follow from the seed ``number``; afterwards the generators are as they were before."""
        ...


def start(
    train: Train, engine: Part[EngineSpec] | None = None, layout: Part[Layout] | None = None
) -> AbstractContextManager[Engine]:
    """The engine of a run. Entering it meets the other ranks, leaving it lets them go.

    Args:
        train: the settings; ``train.device`` names a device of the engine.
        engine: which one; None: PyTorch's own.
        layout: how the run divides the model, where that is known.

    Raises:
        ConfigError: the device is not there, or there are fewer of it than ranks on this machine.
        LaunchError: on entering, another rank did not come within ``train.timeout`` seconds.
    """
    if engine is None:
        native: AbstractContextManager[Engine] = load("recipe_core.engine.native:build", "the core")(None, train)
        return native
    found: AbstractContextManager[Engine] = engine.build(engine.config, train, layout)
    return found
