"""Samples that a condition accepts, found through an index that is built as the run proceeds.

The index of a split is divided into stretches of the samples below: 256, then as many as before, up to 16,384. A
stretch is a file of the accepted numbers in it. It is built when a sample after the known ones is first asked for, by
one process of a machine, while the others wait for it; a later run with the same data, settings and code finds it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipe_core.errors import ConfigError, DataError, PluginError
from recipe_core.files import load_or_build
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import Spec
from recipe_core.layouts.parallel import Batch, Samples

LIMIT = 65_536
"""Samples in a row of which at least one must be accepted."""
_SHORTEST, _LONGEST = 256, 16_384
_ROWS = 256
"""Samples that are read at once for the index."""
Kept = NDArray[np.uint16]


def stretch(number: int) -> tuple[int, int]:
    """Return the first sample of a stretch, and the end."""
    doubling = (_LONGEST // _SHORTEST).bit_length()  # stretches up to the first _LONGEST samples
    if number < doubling:
        return (_SHORTEST << (number - 1) if number else 0), _SHORTEST << number
    return _LONGEST * (number - doubling + 1), _LONGEST * (number - doubling + 2)


class FilteredSamples:
    """See :meth:`recipe_core.WrapperRun.filtered`."""

    def __init__(
        self, samples: Samples, keep: Callable[[Batch], Tensor], spec: Spec, cache: Path, key: Callable[[str], str]
    ) -> None:
        self._samples, self._keep, self._spec = samples, keep, spec
        self._cache, self._key = cache, key
        self._indices: dict[str, _Index] = {}

    def read(self, split: str, start: int, count: int) -> Batch:
        """See :meth:`recipe_core.layouts.parallel.Samples.read`."""
        if split not in self._indices:
            folder = self._cache / self._key(split)
            self._indices[split] = _Index(folder, lambda first, end: self._accepted(split, first, end), self._refuse)
        return gathered(self._samples, split, self._indices[split].numbers(start, count))

    def _accepted(self, split: str, first: int, end: int) -> Kept:
        parts = []
        for start in range(first, end, _ROWS):
            count = min(_ROWS, end - start)
            flags = self._keep(self._samples.read(split, start, count))
            if not isinstance(flags, Tensor) or flags.dtype != torch.bool or flags.shape != (count,):
                got = f"{flags.dtype} {list(flags.shape)}" if isinstance(flags, Tensor) else repr(flags)[:60]
                raise PluginError(
                    f"{code_of(self._spec)}: its filter returned {got}; expected a bool tensor [{count}], one for each "
                    "sample"
                )
            parts.append(flags.nonzero().flatten().numpy() + (start - first))
        return np.concatenate(parts).astype(np.uint16)

    def _refuse(self, scanned: int) -> ConfigError:
        name = self._spec.name
        return ConfigError(
            f"wrapper.{name}: data wrapper {name!r} accepts none of {scanned:,} samples in a row; change its settings, "
            "or leave it out of data.wrappers"
        )


class _Index:
    def __init__(self, folder: Path, accepted: Callable[[int, int], Kept], refuse: Callable[[int], Exception]) -> None:
        self._folder, self._accepted, self._refuse = folder, accepted, refuse
        self._ends: list[int] = []
        """Accepted samples up to the end of each known stretch."""
        self._stretch = lru_cache(maxsize=8)(self._load)

    def numbers(self, start: int, count: int) -> list[int]:
        """The numbers, in the samples below, of the accepted samples ``start`` to ``start + count - 1``."""
        while not self._ends or self._ends[-1] < start + count:
            self._extend()
        numbers: list[int] = []
        while len(numbers) < count:
            place = start + len(numbers)
            found = bisect_right(self._ends, place)
            before = self._ends[found - 1] if found else 0
            kept = self._stretch(found)[place - before : start + count - before]
            numbers += (kept.astype(np.int64) + stretch(found)[0]).tolist()
        return numbers

    def _extend(self) -> None:
        known = len(self._ends)
        total = self._ends[-1] if known else 0
        self._ends.append(total + len(self._stretch(known)))
        first_empty = bisect_right(self._ends, total - 1) + 1 if total else 0  # after the last that has an accepted one
        scanned = stretch(known)[1] - stretch(first_empty)[0] if self._ends[-1] == total else 0
        if scanned >= LIMIT:
            raise self._refuse(scanned)

    def _load(self, number: int) -> Kept:
        def build(part: Path) -> None:
            with part.open("wb") as file:
                np.save(file, self._accepted(*stretch(number)))

        def load(path: Path) -> Kept:
            kept: Kept = np.load(path, allow_pickle=False)
            return kept

        self._folder.mkdir(parents=True, exist_ok=True)
        return load_or_build(self._folder / f"{number:06d}.npy", load, build)


def gathered(samples: Samples, split: str, numbers: Sequence[int]) -> Batch:
    """Read the samples of rising ``numbers``, in few reads."""
    first, span = numbers[0], numbers[-1] - numbers[0] + 1
    if span == len(numbers):
        return samples.read(split, first, span)
    if span <= 2 * len(numbers):  # cheaper than a read for each run of consecutive numbers
        rows = torch.tensor(numbers) - first
        return {name: tensor[rows] for name, tensor in samples.read(split, first, span).items()}
    cuts = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers)]
    runs = [(numbers[a], b - a) for a, b in pairwise(cuts)]
    return joined([samples.read(split, start, count) for start, count in runs])


def joined(batches: Sequence[Mapping[str, Tensor]]) -> Batch:
    """Concatenate batches with the same tensors.

    Raises:
        DataError: the tensors of one name differ in more than their samples.
    """
    for name in batches[0]:
        shapes = {tuple(batch[name].shape[1:]) for batch in batches if name in batch}
        if len(shapes) > 1 or any(name not in batch for batch in batches):
            found = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise DataError(
                f"data: samples have {name!r} of shapes {found}, which make no batch; a dataset that is filtered must "
                "pad all its samples to one length"
            )
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
