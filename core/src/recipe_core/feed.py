"""Micro batches of one rank, read one step ahead by a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from recipe_core.parallel import Batch, Carrier, Run, Samples

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
    """The training batches; a context manager that ends the reading thread.

    ``carrier`` brings them to the device, where that wants to be told by itself.
    """

    def __init__(self, samples: Samples, run: Run, carrier: Carrier | None = None) -> None:
        self.samples, self.run, self._carrier = samples, run, carrier
        self._stream: _Stream | None = None
        self._reader = ThreadPoolExecutor(1, "feed")
        self._ahead: tuple[int, Future[list[Batch]]] | None = None

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.stop()
        if self._carrier is not None:
            self._carrier.close()
        self._reader.shutdown(wait=True, cancel_futures=True)

    def step(self, consumed: int, *, last: bool = False) -> Sequence[Batch]:
        """This rank's micro batches of the step that begins after ``consumed`` samples, on the device.

        Reads the next step's ahead unless it is the ``last``. With a carrier they are taken in order, each once.
        """
        if self._carrier is not None:
            if self._stream is None or self._stream.position != consumed:
                self._stream = _Stream(self._carrier, self._read_by_turns, consumed, self.run)
            return self._stream.step()
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
        batch = self._reader.submit(self._micro, "valid", start, self.run.train.eval_samples).result()
        if self._carrier is not None:
            return _all_widened(self._carrier.place(batch))
        return self._move(batch)

    def _micro(self, split: str, start: int, samples: int) -> Batch:
        """The micro batch that begins at ``start``, of ``samples`` samples that the data-parallel ranks share.

        Where this process drives several of these, one after the other what each of them would read.
        """
        size, share = self.run.train.micro_batch, samples // self.run.dp_size
        parts = [self.samples.read(split, start + rank * share, size) for rank in range(self.run.together)]
        return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _read_by_turns(self, consumed: int) -> list[Batch]:
        """What :meth:`_read` gives, by the thread that reads validation samples too."""
        return self._reader.submit(self._read, consumed).result()

    def _read(self, consumed: int) -> list[Batch]:
        samples = self.run.train.global_batch
        batches = [self._micro("train", start, samples) for start in starts(self.run, consumed, samples)]
        if self.run.device.type == "cuda":
            return [{name: value.pin_memory() for name, value in batch.items()} for batch in batches]
        return batches

    def _move(self, batch: Batch) -> Batch:
        return {name: _widened(value.to(self.run.device, non_blocking=True)) for name, value in batch.items()}


class _Stream(Iterator[Batch]):
    """Micro batches from one sample on, which a carrier asks for from threads of its own."""

    def __init__(self, carrier: Carrier, read: Callable[[int], list[Batch]], consumed: int, run: Run) -> None:
        self.position = consumed
        self._read, self._train = read, run.train
        self._count = len(starts(run, consumed, run.train.global_batch))
        self._waiting: list[Batch] = []
        self._ahead, self._stopped = consumed, False
        self._failure: BaseException | None = None
        self._carried = carrier.stream(self, self._count)

    def step(self) -> Sequence[Batch]:
        """The micro batches of the next step."""
        self.position += self._train.global_batch
        return _Once(self._taken(), self._count)

    def stop(self) -> None:
        """Nothing more is wanted."""
        self._stopped = True

    def __next__(self) -> Batch:
        if not self._waiting:
            if self._stopped or self._failure or self._ahead >= self._train.steps * self._train.global_batch:
                raise StopIteration
            try:
                self._waiting = self._read(self._ahead)
            except BaseException as error:  # told where it is noticed: a thread of the carrier's would lose it
                self._failure = error
                raise StopIteration from error
            self._ahead += self._train.global_batch
        return self._waiting.pop(0)

    def _taken(self) -> Iterator[Batch]:
        for _ in range(self._count):
            batch = next(self._carried, None)
            if batch is None:
                raise self._failure or RuntimeError("the stream of batches ended before the run")
            yield _all_widened(batch)


class _Once(Sequence[Batch]):
    """So many micro batches, each taken once and in order: one that was used is not kept."""

    def __init__(self, batches: Iterator[Batch], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        return self._batches

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("these micro batches are taken in order")


def _all_widened(batch: Batch) -> Batch:
    return {name: _widened(value) for name, value in batch.items()}


def _widened(value: Tensor) -> Tensor:
    """Integers as int64, which embeddings and losses take; on the way to the device they are as narrow as in files."""
    return value.long() if value.dtype in _NARROW else value
