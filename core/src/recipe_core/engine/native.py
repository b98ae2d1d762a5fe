"""Native PyTorch: a device, torch.distributed and DeviceMesh."""

from __future__ import annotations

import gc
import math
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
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from recipe_core.engine import neuron
from recipe_core.engine.compiled import Compiler, TorchCompile
from recipe_core.engine.loader import DeviceLoader, PlainLoader, Request
from recipe_core.engine.memory import keep_freed_memory, peak_resident
from recipe_core.engine.peaks import Peak, known_peak, trainium_instance_peak
from recipe_core.engine.protocol import Engine, Value
from recipe_core.errors import ConfigError, LaunchError
from recipe_core.hooks.train import Train
from recipe_core.launch.failures import chain, explain, no_room
from recipe_core.launch.supervisor import STORE
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.launch.worker import Worker, worker

# Others are asked of torch.distributed, which knows the backends that an extension registered for its device.
_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "neuron": "neuron", "hpu": "hccl", "xpu": "xccl"}

# Here the runtime gives each process a device of its own, by its local rank, and the device has no index.
_UNNUMBERED = ("cpu", "neuron", "hpu")

# Seconds that leaving a failed run may take: gloo waits for collectives under way, up to their timeout.
_FAREWELL = 5.0


def build(config: object, train: Train, layout: object = None) -> AbstractContextManager[Engine]:
    """The engine ``native``."""
    # transformers, which would else take an installed torch-xla for what the run computes on.
    os.environ.setdefault("USE_TORCH_XLA", "0")
    return NativeEngine(train.device, train.timeout)


class NativeEngine:
    """One rank on a device of native PyTorch; see :class:`recipe_core.engine.protocol.Engine`."""

    traced = False

    def __init__(self, device: str, timeout: float) -> None:
        """``device``: ``auto`` or a device type; ``timeout``: seconds that one collective may take."""
        self._worker = worker()
        self._timeout = timedelta(seconds=timeout)
        self.rank = self._worker.rank if self._worker else 0
        self.world_size = self._worker.world_size if self._worker else 1
        self.local_rank = self._worker.local_rank if self._worker else 0
        self.device = _device(device, self._worker)

    def __enter__(self) -> NativeEngine:
        if self._worker is not None:
            os.environ.update(self._worker.variables())
            if self.world_size > 1:
                self._meet(self._worker)
        # After the process group: TorchNeuron wants it before the device is touched, and no other device minds.
        if self.device.type == neuron.NAME:
            neuron.take()
        if self.device.index is not None:
            torch.accelerator.set_device_index(self.device.index)
        if self.device.type == "cpu":
            keep_freed_memory()
        return self

    def _meet(self, me: Worker) -> None:
        store = me.rendezvous.get(STORE)
        try:
            with beat.waiting("meeting the other ranks"):
                dist.init_process_group(
                    _backend(self.device.type),
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
            for one in chain(error):
                traceback.clear_frames(one.__traceback__)
        gc.collect()
        if error is None:
            dist.destroy_process_group()
            return
        farewell = threading.Thread(target=_destroy_quietly, name="destroy-process-group", daemon=True)
        farewell.start()
        farewell.join(_FAREWELL)

    @property
    def autocast_device(self) -> str:
        return self.device.type

    @property
    def devices(self) -> int:
        return self.world_size

    def mesh(self, axes: dict[str, int]) -> DeviceMesh | None:
        sizes = tuple(axes.values())
        self._require_size(axes)
        if self.world_size == 1:
            return None
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=tuple(axes))
        for axis in axes:  # which else wait as long as the backend likes
            _set_pg_timeout(self._timeout, mesh.get_group(axis))
        return mesh

    def _require_size(self, axes: dict[str, int]) -> None:
        size = math.prod(axes.values())
        if size != self.devices:
            text = " x ".join(f"{name}={length}" for name, length in axes.items())
            raise ConfigError(f"layout: {text} needs {size} processes, and this run has {self.devices}")

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def end_step(self) -> None:
        """Nothing is put off here."""

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

    def fillable(self, tensor: Tensor) -> Tensor:
        return tensor

    def stacked(self, values: Sequence[Tensor]) -> Tensor:
        here = [value.cpu() if neuron.is_narrow(value.device) else value for value in values]
        return torch.stack([value.double() if value.device.type == "cpu" else value.float() for value in here])

    def total(self, counts: Sequence[Tensor]) -> Tensor:
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
        peak = _peak(self.device)
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
        # The form whose error names the rank that did not come. The function of this name refuses groups that have
        # gloo beside another backend; the group's own method does not.
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
        """A type that holds sums: bf16 has 8 bits, and integers need more than fp32's 24 where there is more."""
        if dtype.is_floating_point or dtype.is_complex:
            return torch.float32 if dtype.itemsize < 4 else dtype
        return torch.float64 if self.device.type in ("cpu", "cuda") else torch.float32

    def any(self, flag: bool) -> bool:
        return bool(self.largest(int(flag))()[0])

    def largest(self, *values: int) -> Callable[[], list[int]]:
        if self.world_size == 1:
            return lambda: list(values)
        found = torch.tensor(values)  # on the CPU: no waiting for the device's queue
        work = dist.all_reduce(found, dist.ReduceOp.MAX, async_op=True)

        def wait() -> list[int]:
            assert work is not None  # this rank is one of the group
            with beat.waiting("agreement of ranks"):
                work.wait()
            return [int(value) for value in found.tolist()]

        return wait

    def gather(self, value: Value) -> list[Value]:
        return _gather(value, self.world_size, None)

    def side(self) -> NativeSide:
        group = None
        if self.world_size > 1:
            group = dist.new_group(backend="gloo", timeout=self._timeout)
        return NativeSide(self.rank, self.world_size, group)

    def broadcast(self, value: Value) -> Value:
        if self.world_size == 1:
            return value
        values = [value]
        with beat.waiting("broadcast from rank 0"):
            dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def seed(self, number: int) -> None:
        if self.device.type == "cpu":  # its generator alone: telling the devices that are not used takes 2 ms
            torch.default_generator.manual_seed(number)
        else:
            torch.manual_seed(number)  # of every device that PyTorch knows

    @contextmanager
    def fork_rng(self, number: int) -> Iterator[None]:
        with fork_rng(self.device, number):
            yield


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies on the host; shards of a DTensor are copied where they are."""
    return [t.detach().clone() if isinstance(t, DTensor) else t.detach().to("cpu", copy=True) for t in tensors]


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
class NativeSide:
    """The ranks of a second thread; see :class:`recipe_core.engine.protocol.SideRanks`."""

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
    """The store through which ranks of torchrun or srun meet; ``wait``: until all are there.

    torchrun's agent may keep one for all its attempts to start the ranks, in which those of a later attempt would find
    the addresses of an earlier one's; so each attempt has keys of its own.
    """
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        me.rendezvous["MASTER_ADDR"], int(me.rendezvous["MASTER_PORT"]), me.world_size,
        is_master=me.rank == 0 and not of_agent, timeout=timeout, multi_tenant=not of_agent, wait_for_workers=wait,
    )  # fmt: skip
    if not of_agent:
        return store
    attempt = f"recipe/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{me.world_size}"
    # Ranks are started anew without being counted, too, where a machine joined: all of them come, or none.
    arrived = store.add(f"{attempt}/arrived", 1)
    return dist.PrefixStore(f"{attempt}/{(arrived - 1) // me.world_size}", store)


def device_kind(name: str) -> str:
    """The type of the devices here that ``train.device`` names; nothing is put on them yet.

    Raises:
        ConfigError: there is none of it.
    """
    if name in ("auto", neuron.NAME) and neuron.is_here():
        return neuron.NAME
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    found = ["cpu"] if accelerator is None else [accelerator.type, "cpu"]
    kind = found[0] if name == "auto" else name
    if kind not in found:
        raise ConfigError(
            f"train.device: {name!r} is not available here (found: {', '.join(found)}); set train.device=auto, "
            f"or install the PyTorch that supports it"
        )
    return kind


def _device(name: str, me: Worker | None) -> torch.device:
    """The device of this rank; nothing is put on it yet."""
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


def _backend(kind: str) -> str:
    """The backend of a device type, with gloo beside it for what lives on the CPU: flags and Python objects."""
    if kind == "cpu":
        return "gloo"
    try:
        return f"cpu:gloo,{kind}:{_BACKENDS.get(kind) or dist.get_default_backend_for_device(kind)}"
    except ValueError:
        raise ConfigError(
            f"train.device: {kind} has no backend for several processes; start one process, or set train.device=cpu"
        ) from None


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None  # several ranks have met
    return world


def _destroy_quietly() -> None:
    try:
        dist.destroy_process_group()
    except Exception as error:
        # The error that ended the run is on its way to the user and must stay the one they see.
        print(f"while leaving the process group: {error}", file=sys.stderr)


def _peak(device: torch.device) -> Peak | None:
    if device.type == "neuron":
        return trainium_instance_peak()
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return known_peak(name()) if name is not None else None
