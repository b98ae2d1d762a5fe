"""The engine for PyTorch/XLA, which traces operations into graphs that the device compiles once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from recipe_core import ConfigError, Engine, LaunchError, Layout, Part, Train
from recipe_core.checkpoint.lazy import to_host
from recipe_core.engine.loader import DeviceLoader, Request
from recipe_core.engine.memory import peak_resident
from recipe_core.engine.native import NativeEngine, fork_rng
from recipe_core.engine.neuron.peaks import trainium_instance_peak
from recipe_core.engine.select import divides
from recipe_xla import neuronx
from recipe_xla.batches import StreamLoader, XlaTransfer
from recipe_xla.checkpoint.shards import on_host
from recipe_xla.collectives import (
    Collectives,
    DeviceCollectives,
    HostCollectives,
    SingleProcessCollectives,
    average_gradients,
    refuse_raw_collectives,
)
from recipe_xla.compiler import XlaCompiler
from recipe_xla.machine import one_process, pjrt_device
from recipe_xla.mesh import DeviceGrid, DeviceGroup
from recipe_xla.settings import XlaSettings


def build(config: XlaSettings, train: Train, layout: Part[Layout] | None = None) -> AbstractContextManager[Engine]:
    """The engine ``xla``; a layout that shards the model over devices other than Neuron's has one process."""
    return XlaEngine(config, train, one_process=layout is not None and divides(layout) and one_process(layout))


class XlaEngine(NativeEngine):
    """One process with one XLA device, or under SPMD with all of them; see :class:`recipe_core.engine.protocol.Engine`.

    Processes communicate on the host, as in a native run on a CPU: flags, Python objects, barriers and checkpoints
    never touch the device. Tensors on the device go through ``collectives``.
    """

    traced = True

    def __init__(self, config: XlaSettings, train: Train, *, one_process: bool) -> None:
        # one_process: drive all devices of the run by SPMD
        super().__init__("cpu", train.timeout)
        self._bucket, self._one_process = int(config.bucket_mb * 2**20), one_process
        self._kind = pjrt_device()
        self._grid: DeviceGrid | None = None
        self.collectives: Collectives = SingleProcessCollectives()

    def __enter__(self) -> XlaEngine:
        os.environ["PJRT_DEVICE"] = self._kind
        super().__enter__()
        import torch_xla
        from torch_xla import runtime

        if self._one_process:
            if self.world_size > 1:
                raise ConfigError(
                    f"layout: under train.engine=xla one process drives all devices, and this run has "
                    f"{self.world_size}; start one (recipe run without torchrun or srun)"
                )
            runtime.use_spmd()
        elif self.world_size > 1:
            refuse_raw_collectives()
            self.collectives = HostCollectives() if self._kind == "CPU" else DeviceCollectives()
        self.device = torch_xla.device()  # before any model exists, see docs/explanation/xla.md
        if isinstance(self.collectives, DeviceCollectives) and runtime.world_size() != self.world_size:
            # Else its collectives would not reduce.
            raise LaunchError(
                f"this run has {self.world_size} processes, and the runtime of PJRT_DEVICE={self._kind} knows of "
                f"{runtime.world_size()}; start them as its manual says (torchrun), each with a device of its own"
            )
        return self

    @property
    def devices(self) -> int:
        if not self._one_process:
            return self.world_size
        from torch_xla import runtime

        return int(runtime.global_runtime_device_count())

    def mesh(self, axes: dict[str, int]) -> Any:  # a DeviceGrid, with the methods of a DeviceMesh
        if self._one_process and self.devices > 1:
            self._grid = DeviceGrid.of_devices(axes)
        elif self.world_size > 1 and "tp" in axes:  # neuronx-distributed decides which ranks share layers
            self._grid = neuronx.grid(axes, self.rank, self._timeout)
        elif self.world_size > 1:
            self._grid = DeviceGrid.of_processes(axes, self.rank, self._timeout)
        return self._grid

    def synchronize(self) -> None:
        from torch_xla.core import xla_model as xm

        xm.wait_device_ops()

    def end_step(self) -> None:
        self.collectives.sync()

    def read(self, tensor: Tensor) -> Tensor:
        """See :class:`recipe_core.engine.protocol.Engine`; waits for the graph that computes ``tensor``, without a
        graph of its own."""
        from torch_xla.core import xla_model as xm

        copied: list[Tensor] = []
        xm.add_step_closure(lambda value: copied.append(value.cpu()), args=(tensor.detach(),))
        self.collectives.sync()
        return copied[0]

    def mean(self, tensor: Tensor, group: Any = None) -> Tensor:
        wide = tensor.detach().to(self._mean_type(tensor.dtype))
        if group is None and self._grid is not None and self.world_size > 1:
            return super().mean(wide.cpu()).to(tensor.device)
        return self.collectives.mean(wide, group if isinstance(group, DeviceGroup) else None)

    def seed(self, number: int) -> None:
        import torch_xla

        torch.manual_seed(number)
        torch_xla.manual_seed(number & 0x7FFF_FFFF_FFFF_FFFF, self.device)

    def peak_memory(self) -> int | None:
        if self._kind == "CPU":
            return peak_resident()
        from torch_xla.core import xla_model as xm

        try:
            return int(xm.get_memory_info(self.device)["peak_bytes_used"])
        except (KeyError, RuntimeError):  # not every runtime knows it
            return None

    def peak_flops(self, precision: str) -> float | None:
        peak = trainium_instance_peak() if self._kind == "NEURON" else None
        if peak is None:
            return None
        value = peak.fp32 if precision == "fp32" else peak.bf16
        return None if value is None else value * 1e12

    def counters(self) -> dict[str, float]:
        """The numbers of compiled graphs and of transfers from the device to the host so far."""
        from torch_xla.debug import metrics

        named = {"graphs_compiled": "CompileTime", "host_transfers": "TransferFromDeviceTime"}
        return {name: float((metrics.metric_data(metric) or (0,))[0]) for name, metric in named.items()}

    @property
    def compiler(self) -> XlaCompiler:
        return XlaCompiler()

    def device_loader(self, request: Request, train: Train) -> DeviceLoader:
        transfer = XlaTransfer(self.device, None if self._grid is None else self._grid.mesh)
        return StreamLoader(transfer, request, train)

    def to_host(self, tensors: Sequence[Tensor]) -> list[Any]:
        whole = [tensor for tensor in tensors if not isinstance(tensor, DTensor)]
        copies = iter(on_host([tensor for tensor in whole if tensor.device.type == "xla"]))

        def copy(tensor: Tensor) -> Any:
            if isinstance(tensor, DTensor):
                return to_host(tensor) if tensor.device.type == "xla" else tensor.detach().clone()
            return next(copies) if tensor.device.type == "xla" else tensor.detach().to("cpu", copy=True)

        return [copy(tensor) for tensor in tensors]

    def load_target(self, tensor: Tensor) -> Tensor:
        """Memory on the host: on the device, each part that a checkpoint loads would be an operation of a graph."""
        if isinstance(tensor, DTensor):
            return to_host(tensor, blank=True)
        return torch.empty(tensor.shape, dtype=tensor.dtype) if tensor.device.type == "xla" else tensor

    fillable = load_target  # its name until API 2

    def recompute(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """torch_xla's checkpoint, with a barrier that keeps the compiler from merging both computations."""
        from torch_xla.utils.checkpoint import checkpoint

        return partial(checkpoint, forward, use_reentrant=True)

    def average_gradients(self, parameters: Iterable[nn.Parameter], group: Any = None) -> None:
        if isinstance(group, DeviceGroup):
            average_gradients(parameters, self.collectives, group, self._bucket)
        else:
            super().average_gradients(parameters, group)

    @contextmanager
    def fork_rng(self, number: int) -> Iterator[None]:
        """The state of the device's generator is a number on the host, an input of the graph: graphs stay the same."""
        from torch_xla.core import xla_model as xm

        state = xm.get_rng_state(self.device)
        try:
            with fork_rng(torch.device("cpu"), number):
                xm.set_rng_state(number, self.device)
                yield
        finally:
            xm.set_rng_state(state, self.device)
