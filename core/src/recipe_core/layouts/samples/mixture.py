"""The dataset ``mixture``: samples of several datasets, interleaved evenly in exact proportions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recipe_core.data.mixture import Mixture, period, require_parts
from recipe_core.errors import DataError
from recipe_core.hooks.specs.wrapper import outermost
from recipe_core.layouts.parallel import Batch, Run, Samples
from recipe_core.layouts.samples.build import CheckedSamples, build_samples


def build(config: Mixture, run: Run) -> MixedSamples:
    """Build the parts.

    Raises:
        ConfigError: there are no parts.
    """
    require_parts(config)
    return MixedSamples(
        {
            name: CheckedSamples(build_samples(part, run), outermost(part))
            for name, part in config.parts.items()
        },
        period(config),
    )  # fmt: skip


class MixedSamples:
    """Samples of several datasets.

    Args:
        parts: the samples by name.
        counts: how many samples of each are in a period.
    """

    def __init__(self, parts: Mapping[str, Samples], counts: Mapping[str, int]) -> None:
        self._parts, self._names = list(parts.values()), list(parts)
        self._counts = np.array([counts[name] for name in parts])
        self._choices = interleaved(self._counts)
        taken = np.cumsum(self._choices[:, None] == np.arange(len(parts)), axis=0)
        self._before = np.vstack([np.zeros(len(parts), dtype=np.int64), taken])
        """Samples of each part before each place of the period."""
        self._tensors: dict[str, list[str]] = {}

    def read(self, split: str, start: int, count: int) -> Batch:
        """See :meth:`recipe_core.layouts.parallel.Samples.read`."""
        names = self._tensors.get(split) or self._common(split)
        places = np.arange(start, start + count) % len(self._choices)
        chosen = self._choices[places]
        firsts = start // len(self._choices) * self._counts + self._before[start % len(self._choices)]
        mixed: Batch = {}
        for part in np.unique(chosen):  # the samples of a part are consecutive in its own order
            rows = torch.from_numpy(np.flatnonzero(chosen == part))
            batch = self._parts[part].read(split, int(firsts[part]), len(rows))
            for name in names:
                mixed[name] = self._placed(mixed.get(name), batch[name], rows, count, name)
        return mixed

    def _common(self, split: str) -> list[str]:
        """The tensors that all parts give, which must have the same shapes."""
        firsts = [part.read(split, 0, 1) for part in self._parts]
        names = [name for name in firsts[0] if all(name in batch for batch in firsts)]
        if not names:
            given = "; ".join(f"{name}: {', '.join(batch)}" for name, batch in zip(self._names, firsts, strict=True))
            raise DataError(
                f"data.parts: the datasets have no tensor in common ({given}); mix those that belong together"
            )
        self._tensors[split] = names
        return names

    def _placed(self, mixed: Tensor | None, values: Tensor, rows: Tensor, count: int, name: str) -> Tensor:
        if mixed is None:
            mixed = values.new_zeros((count, *values.shape[1:]))
        if mixed.shape[1:] != values.shape[1:]:
            raise DataError(
                f"data.parts: {name!r} has shape {list(mixed.shape[1:])} in one dataset and {list(values.shape[1:])} "
                "in another; give them the same settings"
            )
        if mixed.dtype != values.dtype:
            if _is_float(mixed) or _is_float(values):
                raise DataError(
                    f"data.parts: {name!r} is {mixed.dtype} in one dataset and {values.dtype} in another; a data "
                    "wrapper around one of them can convert it"
                )
            mixed, values = mixed.long(), values.long()
        mixed[rows] = values
        return mixed


def interleaved(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of each place of a period with ``counts`` samples of each part.

    Each place takes the part that is furthest behind its share, the first of equals, so that the samples of a part are
    spread evenly; integers keep this exact.
    """
    taken, total = np.zeros_like(counts), int(counts.sum())
    choices = np.empty(total, dtype=np.int64)
    for place in range(total):
        choices[place] = part = int(np.argmax(counts * (place + 1) - taken * total))
        taken[part] += 1
    return choices


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
