"""Batches on their way to an XLA device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from recipe_core import Train
from recipe_core.engine.loader import Batch, Request, all_widened


class Transfer(Protocol):
    """Moves batches to a device in threads of its own."""

    def stream(self, batches: Iterator[Batch], ahead: int) -> Iterator[Batch]:
        """``batches`` on the device, about ``ahead`` of them prefetched."""
        ...

    def place(self, batch: Batch) -> Batch:
        """One batch on the device."""
        ...

    def close(self) -> None:
        """Release what the last stream holds."""
        ...


class XlaTransfer:
    """Moves batches to the device in threads of torch_xla; see :class:`Transfer`.

    Args:
        device: the target.
        mesh: a ``torch_xla.distributed.spmd.Mesh`` of devices that shard samples over its axis ``dp``; or None.
    """

    def __init__(self, device: torch.device, mesh: Any) -> None:
        self._device = device
        self._sharding = None if mesh is None else _BySample(mesh)
        self._loader: Any = None

    def stream(self, batches: Iterator[Batch], ahead: int) -> Iterator[Batch]:
        """See :class:`Transfer`. Each ``next`` first syncs the operations before it."""
        from torch_xla.distributed.parallel_loader import ParallelLoader

        self.close()
        # MpDeviceLoader creates one when it is iterated; this one can be closed.
        self._loader = ParallelLoader(
            batches, [self._device], loader_prefetch_size=ahead, device_prefetch_size=ahead,
            input_sharding=self._sharding,
        )  # fmt: skip
        loaded: Iterator[Batch] = self._loader.per_device_loader(self._device)
        return loaded

    def place(self, batch: Batch) -> Batch:
        """See :class:`Transfer`."""
        from torch_xla.core import xla_model as xm

        placed: list[Batch] = xm.send_cpu_data_to_device([batch], self._device, self._sharding)
        return placed[0]

    def close(self) -> None:
        """See :class:`Transfer`."""
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


class _BySample:
    """The sharding of each tensor for torch_xla: along its first dimension."""

    minibatch = False
    """The batch is whole: no other process has parts of it."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._specs: dict[int, Any] = {}

    def xla_spec(self, tensor: Tensor) -> Any:
        """The sharding of ``tensor``."""
        from torch_xla.distributed.spmd import ShardingSpec

        if tensor.ndim not in self._specs:
            self._specs[tensor.ndim] = ShardingSpec(self._mesh, ("dp", *[None] * (tensor.ndim - 1)))
        return self._specs[tensor.ndim].xla_spec(tensor)


class StreamLoader:
    """Reads ahead as far as the transfer prefetches; see :class:`recipe_core.engine.loader.DeviceLoader`.

    The micro batches of a step allow one pass, in order.

    Args:
        transfer: moves them to the device.
        request: asks the reading thread for a step.
        train: the batch sizes and the number of steps.
    """

    def __init__(self, transfer: Transfer, request: Request, train: Train) -> None:
        self._transfer, self._request, self._train = transfer, request, train
        self._stream: _Stream | None = None

    def ready(self, batch: Batch) -> Batch:
        """See :class:`recipe_core.engine.loader.DeviceLoader`."""
        return batch

    def step(self, consumed: int, *, last: bool = False) -> Sequence[Batch]:
        """See :class:`recipe_core.engine.loader.DeviceLoader`."""
        if self._stream is None or self._stream.position != consumed:
            self._stream = _Stream(self._transfer, self._request, consumed, self._train)
        return self._stream.step()

    def place(self, batch: Batch) -> Batch:
        """See :class:`recipe_core.engine.loader.DeviceLoader`."""
        return all_widened(self._transfer.place(batch))

    def close(self) -> None:
        """See :class:`recipe_core.engine.loader.DeviceLoader`."""
        if self._stream is not None:
            self._stream.stop()
        self._transfer.close()


class _Stream(Iterator[Batch]):
    """Micro batches from the sample ``consumed`` on."""

    def __init__(self, transfer: Transfer, request: Request, consumed: int, train: Train) -> None:
        self.position = consumed
        self._request, self._train = request, train
        self._waiting: list[Batch] = request(consumed).result()
        self._count = len(self._waiting)
        self._ahead, self._stopped = consumed + train.global_batch, False
        self._failure: BaseException | None = None
        self._carried = transfer.stream(self, self._count)

    def step(self) -> Sequence[Batch]:
        """The micro batches of the next step."""
        self.position += self._train.global_batch
        return _SinglePass(self._taken(), self._count)

    def stop(self) -> None:
        """End the stream."""
        self._stopped = True

    def __next__(self) -> Batch:
        if not self._waiting:
            if self._stopped or self._failure or self._ahead >= self._train.steps * self._train.global_batch:
                raise StopIteration
            try:
                self._waiting = self._request(self._ahead).result()
            except BaseException as error:  # raised by _taken: a thread of the transfer would lose it
                self._failure = error
                raise StopIteration from error
            self._ahead += self._train.global_batch
        return self._waiting.pop(0)

    def _taken(self) -> Iterator[Batch]:
        for _ in range(self._count):
            batch = next(self._carried, None)
            if batch is None:
                raise self._failure or RuntimeError("the stream of batches ended before the run")
            yield all_widened(batch)


class _SinglePass(Sequence[Batch]):
    """Micro batches for one pass, in order; it keeps none of them."""

    def __init__(self, batches: Iterator[Batch], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("these micro batches are taken in order")
