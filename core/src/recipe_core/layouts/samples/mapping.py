"""Samples that a function makes of others, with random numbers that belong to each sample."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from recipe_core.layouts.parallel import Batch, Samples


class SampleGenerators:
    """A generator for each sample of a batch, which depends on the number of the sample alone."""

    def __init__(self, seed: str, start: int, count: int) -> None:
        self._generators = [
            torch.Generator().manual_seed(
                int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest(), "little")
            )
            for number in range(start, start + count)
        ]

    def __len__(self) -> int:
        return len(self._generators)

    def __iter__(self) -> Iterator[torch.Generator]:
        return iter(self._generators)

    def __getitem__(self, index: int) -> torch.Generator:
        return self._generators[index]

    def rand(self, *size: int) -> Tensor:
        """Return numbers from 0 to below 1, of shape ``[count, *size]``."""
        return torch.stack([torch.rand(size, generator=generator) for generator in self])

    def randint(self, high: int, *size: int) -> Tensor:
        """Return whole numbers from 0 to below ``high``, of shape ``[count, *size]``."""
        return torch.stack([torch.randint(high, size, generator=generator) for generator in self])


class MappedSamples:
    """See :meth:`recipe_core.WrapperRun.mapped`."""

    def __init__(self, samples: Samples, change: Callable[[Batch, SampleGenerators], Batch], seed: str) -> None:
        self._samples, self._change, self._seed = samples, change, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        """See :meth:`recipe_core.layouts.parallel.Samples.read`."""
        # A copy: a function that changes the dict, or a tensor in place, must not change what a dataset may keep.
        batch = {name: tensor.clone() for name, tensor in self._samples.read(split, start, count).items()}
        return self._change(batch, SampleGenerators(f"{self._seed} {split}", start, count))
