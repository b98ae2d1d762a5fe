"""The interface of an engine: one rank's device and its communication with other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from recipe_core.errors import PluginError
from recipe_core.hooks import earlier
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import EngineSpec, Layout, Part, load
from recipe_core.hooks.target import as_plugin_error
from recipe_core.hooks.train import Precision, Train
from recipe_core.launch.failures import explain

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from recipe_core.engine.compiled import Compiler
    from recipe_core.engine.loader import DeviceLoader, Request

__all__ = [
    "Communication",
    "Device",
    "Engine",
    "GraphBackend",
    "HostRanks",
    "HostTransfer",
    "Ranks",
    "explain",
    "start",
]

Value = TypeVar("Value")


class Ranks(Protocol):
    """The ranks of a run.

    "All ranks call it" means: all of them, in the same order.
    """

    rank: int
    world_size: int

    def gather(self, value: Value) -> list[Value]:
        """Each rank's ``value`` (small, picklable), in rank order. All ranks call it."""
        ...


class HostRanks(Ranks, Protocol):
    """The ranks of a run, for a second thread whose collectives are separate from those of the first."""

    group: ProcessGroup | None
    """A gloo group, for tensors on the CPU; None for a run of one process."""


class Communication(Ranks, Protocol):
    """The ranks of a run, and their communication."""

    local_rank: int

    def broadcast(self, value: Value) -> Value:
        """Rank 0's ``value`` (small, picklable). All ranks call it."""
        ...

    def any(self, flag: bool) -> bool:
        """True on all ranks if ``flag`` is true on one. All ranks call it; it does not wait for the device."""
        ...

    def largest(self, *values: int) -> Callable[[], list[int]]:
        """Start the maximum of each value over all ranks, on the host; call the result to wait for it.

        All ranks call both, and the results in the order of the calls.
        """
        ...

    def mean(self, tensor: Tensor, group: ProcessGroup | None = None) -> Tensor:
        """The element-wise mean over the ranks of ``group`` (of a mesh axis; None: all). All of these ranks call it.

        Returns:
            A new tensor of the same shape on the same device; half precision becomes fp32 and integers a floating
            point type, also on one rank.
        """
        ...

    def average_gradients(self, parameters: Iterable[nn.Parameter], group: Any = None) -> None:
        """Average each gradient over the ranks of ``group`` (of a mesh axis; None: all). All of these ranks call it."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks. All ranks call it."""
        ...

    def mesh(self, axes: dict[str, int]) -> DeviceMesh | None:
        """The ranks as a grid with named axes, last axis fastest; None for a run of one process. All ranks call it.

        Raises:
            ConfigError: the axes do not multiply to the number of ranks.
        """
        ...

    def host_ranks(self) -> HostRanks:
        """The same ranks with a gloo group of their own, for one other thread of each. All ranks call it."""
        ...

    def side(self) -> HostRanks: ...  # the earlier name of host_ranks, until API 2


class Device(Protocol):
    """One rank's device."""

    device: torch.device

    @property
    def devices(self) -> int:
        """The product of the layout's axes: the number of ranks, or of devices if one process drives all."""
        ...

    @property
    def autocast_device(self) -> str:
        """Device type for ``torch.autocast``."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished its queue."""
        ...

    def seed(self, number: int) -> None:
        """Seed the generators of PyTorch on the CPU and on the device."""
        ...

    def fork_rng(self, number: int) -> AbstractContextManager[None]:
        """Seed the generators with ``number``; restore them afterwards."""
        ...

    def peak_memory(self) -> int | None:
        """Peak bytes so far: allocated on the device, or resident memory of the process on the CPU."""
        ...

    def peak_flops(self, precision: Precision) -> float | None:
        """Dense FLOP/s of the device's data sheet; None if not known."""
        ...


class HostTransfer(Protocol):
    """Copies between one rank's device and the host."""

    def device_loader(self, request: Request, train: Train) -> DeviceLoader:
        """A loader that moves micro batches to the device; ``request`` asks the reading thread for them."""
        ...

    def read(self, tensor: Tensor) -> Tensor:
        """``tensor`` for the host to read; an engine that is ``traced`` copies it there."""
        ...

    def to_host(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Copies that a thread can write while training continues, copied to the host together.

        Shards of a DTensor may stay on a device whose collectives the thread can use. A copy may be a
        :class:`recipe_core.checkpoint.lazy.Lazy` if several devices hold the tensor.
        """
        ...

    def load_target(self, tensor: Tensor) -> Tensor:
        """The tensor that a checkpoint is loaded into: ``tensor`` itself, or memory on the host."""
        ...

    def stack_on_host(self, values: Sequence[Tensor]) -> Tensor:
        """Scalars stacked into one tensor, in the widest type available."""
        ...

    def sum_counts(self, counts: Sequence[Tensor]) -> Tensor:
        """The sum of scalar counts, which may need more than the 32 bits of some devices."""
        ...

    # The earlier names of load_target, stack_on_host and sum_counts, until API 2.
    def fillable(self, tensor: Tensor) -> Tensor: ...
    def stacked(self, values: Sequence[Tensor]) -> Tensor: ...
    def total(self, counts: Sequence[Tensor]) -> Tensor: ...


class GraphBackend(Protocol):
    """Graphs of operations for one rank's device: traced by the engine, or compiled by ``torch.compile``."""

    traced: bool
    """True if operations are traced into graphs, which run at :meth:`end_step` or when the host reads a value. Such an
    engine has its own random numbers and rounding, and PyTorch's collectives do not work on its tensors."""

    @property
    def compiler(self) -> Compiler:
        """The compiler of graphs for this device."""
        ...

    def compile_options(self) -> Mapping[str, Any]:
        """Arguments of ``torch.compile`` for the device."""
        ...

    def recompute(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """``forward`` with activation checkpointing: it runs again in backward, with the same random numbers."""
        ...

    def end_step(self) -> None:
        """Mark the end of a training step, for engines that are ``traced``."""
        ...

    def counters(self) -> dict[str, float]:
        """Counts of the device's compiler so far, for metrics.jsonl; empty without one."""
        ...


class Engine(Communication, Device, HostTransfer, GraphBackend, Protocol):
    """One rank's device, and its communication with the other ranks.

    A function that needs one of the four parts alone names that.
    """


def start(
    train: Train, engine: Part[EngineSpec] | None = None, layout: Part[Layout] | None = None
) -> AbstractContextManager[Engine]:
    """The engine of a run. Entering it joins the process group, leaving it destroys the group.

    Args:
        train: the settings; ``train.device`` names a device of the engine.
        engine: None: PyTorch's own.
        layout: how the run shards the model, if known.

    Raises:
        ConfigError: the device is not there, or this machine has fewer of them than ranks.
        LaunchError: on entering, another rank did not come within ``train.timeout`` seconds.
    """
    if engine is None:
        native: AbstractContextManager[Engine] = load("recipe_core.engine.native:build", "the core")(None, train)
        return native
    code = code_of(engine.spec)
    errors = as_plugin_error(code, MemoryError, OSError, RuntimeError)
    with errors:
        manager = engine.build(engine.config, train, layout)
    if not isinstance(manager, AbstractContextManager):
        raise PluginError(f"{code} returned {type(manager).__name__}; expected a context manager that gives an Engine")
    return _with_both_names(manager, errors)


@contextmanager
def _with_both_names(manager: AbstractContextManager[Engine], errors: AbstractContextManager[None]) -> Iterator[Engine]:
    with ExitStack() as stack:
        with errors:
            engine = stack.enter_context(manager)
        earlier.add_both_names(type(engine), earlier.ENGINE)
        yield engine
