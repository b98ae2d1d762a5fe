"""Native PyTorch: a device, torch.distributed and DeviceMesh."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.utils.checkpoint import checkpoint

from recipe_core.engine.compiled import Compiler, TorchCompile
from recipe_core.engine.loader import DeviceLoader, PlainLoader, Request
from recipe_core.engine.machine import devices
from recipe_core.engine.memory import keep_freed_memory, peak_resident
from recipe_core.engine.neuron import device as neuron
from recipe_core.engine.protocol import Engine, Value
from recipe_core.engine.staging import to_host
from recipe_core.errors import LaunchError
from recipe_core.hooks.train import Train
from recipe_core.launch.cores import usable_cores
from recipe_core.launch.failures import chain, explain, no_room
from recipe_core.launch.supervisor import STORE
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.launch.worker import Worker, worker

# Seconds that leaving a failed run may take: gloo waits for pending collectives up to their timeout.
_EXIT_GRACE = 5.0


def build(config: object, train: Train, layout: object = None) -> AbstractContextManager[Engine]:
    """The engine ``native``."""
    # Else transformers assumes that the run computes on an installed torch-xla.
    os.environ.setdefault("USE_TORCH_XLA", "0")
    return NativeEngine(train.device, train.timeout)


class NativeEngine:
    """One rank on a device of native PyTorch, and a base of other engines; see :class:`recipe_core.Engine`.

    Args:
        device: ``auto``, or a device type of PyTorch: ``cpu``, ``cuda``.
        timeout: seconds that a collective may take.
    """

    traced = False

    def __init__(self, device: str, timeout: float) -> None:
        self._worker = worker()
        self._timeout = timedelta(seconds=timeout)
        self.rank = self._worker.rank if self._worker else 0
        self.world_size = self._worker.world_size if self._worker else 1
        self.local_rank = self._worker.local_rank if self._worker else 0
        self.device = devices.device_of(device, self._worker)

    def __enter__(self) -> NativeEngine:
        if self._worker is not None:
            os.environ.update(self._worker.variables())
            if self.world_size > 1:
                self._meet(self._worker)
        # After the process group: TorchNeuron needs it before the device is touched.
        if self.device.type == neuron.NAME:
            neuron.take()
        if self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)
        if "OMP_NUM_THREADS" not in os.environ:  # PyTorch's own choice does not know a container's quota
            torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))
        if self.device.type == "cpu":
            keep_freed_memory()
        return self

    def _meet(self, me: Worker) -> None:
        store = me.rendezvous.get(STORE)
        try:
            with beat.waiting("meeting the other ranks"):
                dist.init_process_group(
                    devices.backend_of(self.device.type),
                    init_method=None if store is None else f"file://{store}",
                    store=meeting_store(me, self._timeout) if store is None else None,
                    rank=me.rank,
                    world_size=me.world_size,
                    timeout=self._timeout,
                )
        except RuntimeError as error:
            raise (
                no_room(error, store)
                or explain(error)
                or LaunchError(f"rank {me.rank} of {me.world_size} could not meet the others: {error}")
            ) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not dist.is_initialized():
            return
        # A mesh or group that outlives the process group may abort the process when the interpreter ends (seen with
        # gloo), so all of them go first; those of a failed run are still held by the frames of its traceback.
        if error is not None:
            for link in chain(error):
                traceback.clear_frames(link.__traceback__)
        gc.collect()
        if error is None:
            dist.destroy_process_group()
            return
        leaving = threading.Thread(target=_destroy_quietly, name="destroy-process-group", daemon=True)
        leaving.start()
        leaving.join(_EXIT_GRACE)

    @property
    def autocast_device(self) -> str:
        return self.device.type

    @property
    def devices(self) -> int:
        return self.world_size

    def mesh(self, axes: dict[str, int]) -> DeviceMesh | None:
        sizes = tuple(axes.values())
        if self.world_size == 1:
            return None
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=tuple(axes))
        for axis in axes:  # else they have the backend's default timeout
            _set_pg_timeout(self._timeout, mesh.get_group(axis))
        return mesh

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def end_step(self) -> None:
        pass

    def read(self, tensor: Tensor) -> Tensor:
        return tensor

    def counters(self) -> dict[str, float]:
        return {}

    @property
    def compiler(self) -> Compiler:
        return TorchCompile(self.device.type)

    def device_loader(self, request: Request, train: Train) -> DeviceLoader:
        return PlainLoader(self.device, request, train)

    def to_host(self, tensors: Sequence[Tensor]) -> list[Any]:
        return to_host(tensors)

    def load_target(self, tensor: Tensor) -> Tensor:
        return tensor

    def stack_on_host(self, values: Sequence[Tensor]) -> Tensor:
        here = [value.cpu() if neuron.is_narrow(value.device) else value for value in values]
        return torch.stack([value.double() if value.device.type == "cpu" else value.float() for value in here])

    def sum_counts(self, counts: Sequence[Tensor]) -> Tensor:
        stacked = torch.stack(list(counts))
        return (stacked.cpu().long() if neuron.is_narrow(stacked.device) else stacked).sum()

    def recompute(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        return recomputed(forward)

    def compile_options(self) -> dict[str, Any]:
        return neuron.compile_options(self.device)

    def average_gradients(self, parameters: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = self.mean(parameter.grad, group).to(parameter.dtype)

    def peak_memory(self) -> int | None:
        if self.device.type == "cpu":
            return peak_resident()
        try:
            return torch.accelerator.max_memory_allocated()
        except (AttributeError, RuntimeError, NotImplementedError):  # not every extension counts
            return None

    def peak_flops(self, precision: str) -> float | None:
        peak = devices.peak_of(self.device)
        if peak is None:
            return None
        if precision != "fp32":
            value = peak.bf16
        else:
            value = peak.fp32 if torch.get_float32_matmul_precision() == "highest" else peak.tf32
        return None if value is None else value * 1e12

    def barrier(self) -> None:
        if self.world_size == 1:
            return
        # Its error names the missing rank. The function of this name refuses groups of gloo and another backend; the
        # group's own method does not.
        with beat.waiting("barrier"):
            _world().monitored_barrier(self._timeout, wait_all_ranks=True)  # type: ignore[attr-defined]

    def mean(self, tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
        total = tensor.detach().to(self._mean_type(tensor.dtype), copy=True, memory_format=torch.contiguous_format)
        if self.world_size == 1:
            return total
        with beat.waiting("mean over ranks"):
            dist.all_reduce(total, group=group)
        return total.div_(dist.get_world_size(group))

    def _mean_type(self, dtype: torch.dtype) -> torch.dtype:
        # Wide enough for sums: bf16 has 8 bits, and integers may need more than the 24 of fp32.
        if dtype.is_floating_point or dtype.is_complex:
            return torch.float32 if dtype.itemsize < 4 else dtype
        return torch.float64 if self.device.type in ("cpu", "cuda") else torch.float32

    def any(self, flag: bool) -> bool:
        return bool(self.largest(int(flag))()[0])

    def largest(self, *values: int) -> Callable[[], list[int]]:
        if self.world_size == 1:
            return lambda: list(values)
        maxima = torch.tensor(values)  # on the CPU: does not wait for the device's queue
        work = dist.all_reduce(maxima, dist.ReduceOp.MAX, async_op=True)

        def wait() -> list[int]:
            assert work is not None  # this rank is one of the group
            with beat.waiting("agreement of ranks"):
                work.wait()
            return [int(value) for value in maxima.tolist()]

        return wait

    def gather(self, value: Value) -> list[Value]:
        return _gather(value, self.world_size, None)

    def host_ranks(self) -> NativeHostRanks:
        group = None
        if self.world_size > 1:
            group = dist.new_group(backend="gloo", timeout=self._timeout)
        return NativeHostRanks(self.rank, self.world_size, group)

    # Their names until API 2.
    fillable, stacked, total, side = load_target, stack_on_host, sum_counts, host_ranks

    def broadcast(self, value: Value) -> Value:
        if self.world_size == 1:
            return value
        values = [value]
        with beat.waiting("broadcast from rank 0"):
            dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def seed(self, number: int) -> None:
        if self.device.type == "cpu":  # its generator alone: seeding the unused devices takes 2 ms
            torch.default_generator.manual_seed(number)
        else:
            torch.manual_seed(number)  # of every device that PyTorch knows

    @contextmanager
    def fork_rng(self, number: int) -> Iterator[None]:
        with fork_rng(self.device, number):
            yield


def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """See :meth:`recipe_core.engine.protocol.Engine.recompute`."""
    return partial(checkpoint, forward, use_reentrant=False)


@contextmanager
def fork_rng(device: torch.device, number: int) -> Iterator[None]:
    """See :meth:`recipe_core.engine.protocol.Engine.fork_rng`."""
    own = device.type != "cpu" and hasattr(torch.get_device_module(device), "get_rng_state")
    with torch.random.fork_rng([device] if own else [], device_type=device.type if own else "cpu"):
        if device.type == "cpu":  # its generator alone: seeding unused devices takes longer than a layer
            torch.default_generator.manual_seed(number)
        else:
            torch.manual_seed(number)
        yield


@dataclass
class NativeHostRanks:
    """See :class:`recipe_core.engine.protocol.HostRanks`."""

    rank: int
    world_size: int
    group: dist.ProcessGroup | None

    def gather(self, value: Value) -> list[Value]:
        return _gather(value, self.world_size, self.group)


def _gather(value: Value, world_size: int, group: dist.ProcessGroup | None) -> list[Value]:
    if world_size == 1:
        return [value]
    values: list[Value | None] = [None] * world_size
    with beat.waiting("gather from all ranks"):
        dist.all_gather_object(values, value, group=group)
    return values  # type: ignore[return-value]  # each slot is filled now


def meeting_store(me: Worker, timeout: timedelta, *, wait: bool = True) -> dist.Store:
    """The rendezvous store of ranks that torchrun or srun started; ``wait``: until all have come.

    torchrun's agent may keep one store for all its attempts to start the ranks, in which a later attempt would find the
    addresses of an earlier one: each attempt has keys of its own.
    """
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        me.rendezvous["MASTER_ADDR"], int(me.rendezvous["MASTER_PORT"]), me.world_size,
        is_master=me.rank == 0 and not of_agent, timeout=timeout, multi_tenant=not of_agent, wait_for_workers=wait,
    )  # fmt: skip
    if not of_agent:
        return store
    attempt = f"recipe/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{me.world_size}"
    # The agent also restarts all ranks, without counting it, when a machine joins.
    arrived = store.add(f"{attempt}/arrived", 1)
    return dist.PrefixStore(f"{attempt}/{(arrived - 1) // me.world_size}", store)


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None  # several ranks have met
    return world


def _destroy_quietly() -> None:
    try:
        dist.destroy_process_group()
    except Exception as error:
        # The error that ended the run is the one to show.
        print(f"while leaving the process group: {error}", file=sys.stderr)
