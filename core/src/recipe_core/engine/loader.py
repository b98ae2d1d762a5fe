"""Micro batches on their way from the reading thread to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import torch
from torch import Tensor

from recipe_core.engine.memory import pins_memory
from recipe_core.hooks.train import Train

Batch = dict[str, Tensor]
"""A micro batch: tensors by name, whose first dimension counts the samples."""
Request = Callable[[int], Future[list[Batch]]]
"""Asks the reading thread for the micro batches of the step that begins after this many samples."""

_NARROW = {torch.int8, torch.uint8, torch.int16, torch.int32}


class DeviceLoader(Protocol):
    """Moves micro batches to the device of this rank, before their step."""

    def ready(self, batch: Batch) -> Batch:
        """Prepare a batch on the host for the transfer. The reading thread calls it."""
        ...

    def step(self, consumed: int, *, last: bool = False) -> Sequence[Batch]:
        """The micro batches of the step that begins after ``consumed`` samples, on the device.

        ``last``: no step follows; nothing is read ahead. The result may allow only one pass, in order.
        """
        ...

    def place(self, batch: Batch) -> Batch:
        """Copy one batch to the device now."""
        ...

    def close(self) -> None:
        """Stop reading ahead."""
        ...


class PlainLoader:
    """Reads one step ahead and copies each micro batch as it is asked for; see :class:`DeviceLoader`.

    Args:
        device: the target.
        request: asks the reading thread for a step.
        train: the batch sizes.
    """

    def __init__(self, device: torch.device, request: Request, train: Train) -> None:
        self._device, self._request, self._samples = device, request, train.global_batch
        self._ahead: tuple[int, Future[list[Batch]]] | None = None

    def ready(self, batch: Batch) -> Batch:
        if pins_memory(self._device):
            return {name: value.pin_memory() for name, value in batch.items()}
        return batch

    def step(self, consumed: int, *, last: bool = False) -> Sequence[Batch]:
        position, future = self._ahead or (None, None)
        if future is None or position != consumed:
            future = self._request(consumed)
        batches = future.result()
        after = consumed + self._samples
        self._ahead = None if last else (after, self._request(after))
        return [self.place(batch) for batch in batches]

    def place(self, batch: Batch) -> Batch:
        return {name: widened(value.to(self._device, non_blocking=True)) for name, value in batch.items()}

    def close(self) -> None:
        self._ahead = None


def all_widened(batch: Batch) -> Batch:
    """:func:`widened` of every tensor."""
    return {name: widened(value) for name, value in batch.items()}


def widened(value: Tensor) -> Tensor:
    """Integers as int64, for embeddings and losses; they are copied to the device as narrow as in files."""
    return value.long() if value.dtype in _NARROW else value
