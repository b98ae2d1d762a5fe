"""Micro batches of one rank, read one step ahead by a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType

import torch

from recipe_core.engine.loader import Batch, DeviceLoader, PlainLoader, Request
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run
from recipe_core.layouts.samples.build import Read


def micro_batch_starts(run: Run, consumed: int, samples: int) -> list[int]:
    """First sample of each of this rank's micro batches, out of ``samples`` samples from ``consumed`` on.

    Each rank takes consecutive samples, so that a dataset that reads large blocks (of compressed files) reads only
    those of the rank's share. The union over ranks does not depend on their number.
    """
    size, share = run.train.micro_batch, samples // run.dp_size
    first = consumed + run.dp_rank * share
    return list(range(first, first + share, size))


class Feed:
    """The training batches; a context manager that ends the reading thread.

    ``read`` is that of the samples. ``device_loader`` builds the loader that moves them to the device, see
    :meth:`recipe_core.engine.protocol.Engine.device_loader`. ``global_batch`` returns the samples of the step
    after a number of samples; None: ``train.global_batch``.
    """

    def __init__(
        self, read: Read, run: Run, device_loader: Callable[[Request, Train], DeviceLoader] | None = None,
        global_batch: Callable[[int], int | None] = lambda consumed: None,
    ) -> None:  # fmt: skip
        self._read_samples, self.run = read, run
        self._global_batch = global_batch
        self.last_micro_batch: tuple[Batch, int] | None = None
        """The first micro batch of the last step, and the number of its first sample; None unless it was kept."""
        self._reader = ThreadPoolExecutor(1, "feed")
        self._loader = (device_loader or partial(PlainLoader, run.device))(self._request, run.train)

    def __enter__(self) -> Feed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loader.close()
        self._reader.shutdown(wait=True, cancel_futures=True)

    def step(self, consumed: int, *, last: bool = False, keep: bool = False) -> tuple[Sequence[Batch], list[int]]:
        """This rank's micro batches of the step after ``consumed`` samples on the device, with their first samples.

        Reads the next step's ahead, unless this is the ``last``. With ``keep``, :attr:`last_micro_batch` is the first
        one; the loader must then allow more than one pass.
        """
        samples = self.samples_after(consumed)
        # A loader reads train.global_batch further ahead, which is the wrong place after another number of samples.
        batches = self._loader.step(consumed, last=last or samples != self.run.train.global_batch)
        firsts = micro_batch_starts(self.run, consumed, samples)
        self.last_micro_batch = (batches[0], firsts[0]) if keep else None
        return batches, firsts

    def samples_after(self, consumed: int) -> int:
        """The samples of the step that begins after ``consumed`` samples, over all ranks."""
        return self._global_batch(consumed) or self.run.train.global_batch

    def validation_starts(self) -> list[int]:
        """First sample of each of this rank's micro batches of an evaluation."""
        return micro_batch_starts(self.run, 0, self.run.train.eval_samples)

    def validation(self, start: int) -> Batch:
        """The micro batch of the validation split from sample ``start`` on, on the device."""
        # in the same thread: a dataset may expect one reader at a time
        batch = self._reader.submit(self._micro, "valid", start, self.run.train.eval_samples).result()
        return self._loader.place(batch)

    def samples(self, split: str, start: int, count: int) -> Batch:
        """``count`` samples of ``split`` from ``start`` on, on the device."""
        return self.place(self._reader.submit(self._read_samples, split, start, count).result())

    def place(self, batch: Batch) -> Batch:
        """``batch`` on the device."""
        return self._loader.place(batch)

    def _micro(self, split: str, start: int, samples: int) -> Batch:
        # `samples` are divided among the data-parallel ranks; a process that drives several of them concatenates
        # theirs.
        size, share = self.run.train.micro_batch, samples // self.run.dp_size
        parts = [self._read_samples(split, start + rank * share, size) for rank in range(self.run.local_dp_ranks)]
        return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _request(self, consumed: int) -> Future[list[Batch]]:
        return self._reader.submit(self._read, consumed)

    def _read(self, consumed: int) -> list[Batch]:
        samples = self.samples_after(consumed)
        return [
            self._loader.ready(self._micro("train", first, samples))
            for first in micro_batch_starts(self.run, consumed, samples)
        ]
