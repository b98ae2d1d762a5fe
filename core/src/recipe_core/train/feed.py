"""Micro batches of one rank, read one step ahead by a thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

from recipe_core.layouts.parallel import Batch, Carrier, Run, Samples
from recipe_core.xla.batches import Stream, all_widened, widened


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
        self._stream: Stream | None = None
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
                train = self.run.train
                count = len(starts(self.run, consumed, train.global_batch))
                self._stream = Stream(self._carrier, self._read_by_turns, consumed, count, train)
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
            return all_widened(self._carrier.place(batch))
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
        return {name: widened(value.to(self.run.device, non_blocking=True)) for name, value in batch.items()}
