"""Micro batches of one rank, read one step ahead by a thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch
from torch import Tensor

from recipe_core.parallel import Batch, Run, Samples

_NARROW = {torch.int8, torch.uint8, torch.int16, torch.int32}


def starts(run: Run, consumed: int, samples: int) -> list[int]:
    """First sample of each micro batch that this rank computes of ``samples`` samples that begin at ``consumed``.

    Each rank takes as many in a row: a dataset that reads in large pieces (chunks of compressed files) then reads on
    each rank the pieces of its part, not all of them. Together the ranks see the same samples whatever their number.
    """
    size, share = run.train.micro_batch, samples // run.dp_size
    first = consumed + run.dp_rank * share
    return list(range(first, first + share, size))


class Feed:
    """The training batches; a context manager that ends the reading thread."""

    def __init__(self, samples: Samples, run: Run) -> None:
        self.samples, self.run = samples, run
        self._reader = ThreadPoolExecutor(1, "feed")
        self._ahead: tuple[int, Future[list[Batch]]] | None = None

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)

    def step(self, consumed: int, *, last: bool = False) -> list[Batch]:
        """This rank's micro batches of the step that begins after ``consumed`` samples, on the device.

        Reads the next step's ahead unless it is the ``last``.
        """
        position, future = self._ahead or (None, None)
        if future is None or position != consumed:
            future = self._reader.submit(self._read, consumed)
        batches = future.result()
        after = consumed + self.run.train.global_batch
        self._ahead = None if last else (after, self._reader.submit(self._read, after))
        return [self._move(batch) for batch in batches]

    def validation(self, start: int) -> Batch:
        """The micro batch of the validation split that begins at sample ``start``, on the device."""
        # by the same thread, since a dataset may expect one reader at a time
        read = self._reader.submit(self.samples.read, "valid", start, self.run.train.micro_batch)
        return self._move(read.result())

    def _read(self, consumed: int) -> list[Batch]:
        train = self.run.train
        batches = [
            self.samples.read("train", start, train.micro_batch)
            for start in starts(self.run, consumed, train.global_batch)
        ]
        if self.run.device.type == "cuda":
            return [{name: value.pin_memory() for name, value in batch.items()} for batch in batches]
        return batches

    def _move(self, batch: Batch) -> Batch:
        return {name: _widened(value.to(self.run.device, non_blocking=True)) for name, value in batch.items()}


def _widened(value: Tensor) -> Tensor:
    """Integers as int64, which embeddings and losses take; on the way to the device they are as narrow as in files."""
    return value.long() if value.dtype in _NARROW else value
