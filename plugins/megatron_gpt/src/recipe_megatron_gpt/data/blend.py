"""Blends of several token files: the choice of a file for each sample, in one phase or several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import recipe_index
from recipe_core import DataError
from recipe_megatron_gpt.data.arrays.cached import cached_array
from recipe_megatron_gpt.data.arrays.lengths import PERIOD, SURPLUS
from recipe_megatron_gpt.data.header import Place
from recipe_megatron_gpt.data.order import BlendPart, Indices, Needs, Order, Windows, megatron
from recipe_megatron_gpt.data.packed import fast


class Blend:
    """Samples of several orders, interleaved evenly by their weights; after ``size`` samples the choices repeat."""

    def __init__(self, orders: Sequence[Order], weights: Sequence[float], size: int, cache: Path) -> None:
        self._orders = orders
        shares = np.array(normalised(weights))

        def build() -> NDArray[np.void]:
            choices = np.empty(size, dtype=[("source", np.int16), ("sample", np.int64)])
            choices["source"], choices["sample"] = recipe_index.blending_index(shares, size)
            return choices

        self._choices = cached_array(cache, "blend", [shares.tolist(), size], size, build, access="any")

    @cached_property
    def counts(self) -> Indices:
        """Number of samples of each order among the choices."""
        return np.bincount(self._choices["source"], minlength=len(self._orders))

    def drawn(self, samples: int) -> Indices:
        """Number of samples of each order among the first ``samples``."""
        rounds, rest = divmod(samples, self._choices.size)
        return rounds * self.counts + np.bincount(self._choices["source"][:rest], minlength=len(self._orders))

    def _chosen(self, which: Indices) -> tuple[NDArray[np.int16], Indices]:
        # the order of each position, and its sample there
        rounds, places = np.divmod(which, self._choices.size)
        chosen = self._choices[places]
        sources, samples = chosen["source"], chosen["sample"]
        if rounds.any():
            samples = samples + rounds * self.counts[sources]
        return sources, samples

    def needs(self, which: Indices) -> Needs:
        """See :meth:`Order.needs`."""
        sources, samples = self._chosen(which)
        return [
            need for source in np.unique(sources) for need in self._orders[source].needs(samples[sources == source])
        ]

    def gather(self, which: Indices) -> Indices:
        """See :meth:`Order.gather`."""
        sources, samples = self._chosen(which)
        gathered = {source: self._orders[source].gather(samples[sources == source]) for source in np.unique(sources)}
        ids = np.empty((which.size, *next(iter(gathered.values())).shape[1:]), dtype=np.int64)
        for source, rows in gathered.items():
            ids[sources == source] = rows
        return ids


def blend(parts: Sequence[BlendPart], order: str, requested: int, cache: Path) -> Order:
    """The order of one split over all its files.

    ``megatron`` gives what megatron-core's ``BlendedMegatronDatasetBuilder`` builds for ``blend=(paths, weights)``
    and ``requested`` samples of this split: with weights, each file is repeated as often as its share requires;
    without, each is read once, in proportion to its length.

    Raises:
        DataError: a file has nothing for this split, or its weight is too small for a single sample.
    """
    set_weights = [part.weight for part in parts if part.weight is not None]
    if len(parts) == 1 and (order == "fast" or not set_weights):
        return fast(parts[0]) if order == "fast" else megatron(parts[0], requested)
    if order == "fast":
        return fast_blend([fast(part) for part in parts], parts, cache)
    return _megatron_blend(parts, set_weights, requested, cache)


def fast_blend(orders: Sequence[Order], parts: Sequence[BlendPart], cache: Path) -> Blend:
    """Samples of ``orders``, one for each of ``parts``, by their weights or else by their tokens."""
    weights = [part.tokens if part.weight is None else part.weight for part in parts]
    return Blend(orders, weights, PERIOD, cache)


def _megatron_blend(parts: Sequence[BlendPart], weights: Sequence[float], requested: int, cache: Path) -> Blend:
    if not weights:
        lengths = [part.samples() for part in parts]
        for part, length in zip(parts, lengths, strict=True):
            if not length:
                raise DataError(
                    f"{part.file.prefix}: the split {part.split!r} of this file is shorter than one sample; "
                    "leave it out of data.files, or give every file a weight"
                )
        return Blend([megatron(part, None) for part in parts], lengths, min(requested, sum(lengths)), cache)
    shares = normalised(weights)
    drawn = [ceil(requested * share) for share in shares]
    orders = [megatron(part, ceil(count * (1 + SURPLUS))) for part, count in zip(parts, drawn, strict=True)]
    return Blend(orders, shares, sum(drawn), cache)


@dataclass(frozen=True)
class Continued:
    """The samples of an order from ``start`` on."""

    order: Order
    start: int

    def gather(self, which: Indices) -> Indices:
        """See :meth:`Order.gather`."""
        return self.order.gather(which + self.start)

    def needs(self, which: Indices) -> Needs:
        """See :meth:`Order.needs`."""
        return self.order.needs(which + self.start)


class Phased:
    """Training samples of several phases.

    A file that is in several of them continues where it was: no sample is read twice before its whole epoch was read. A
    phase changes no sample before its first one.

    Args:
        phases: the parts of each.
        begins: the first sample of each, rising from 0.
        cache: folder of this machine for the choices of files.
    """

    def __init__(self, phases: Sequence[Sequence[BlendPart]], begins: Sequence[int], cache: Path) -> None:
        self._begins: Indices = np.array(begins, dtype=np.int64)
        self._orders = list(_orders(phases, begins, cache))

    def gather(self, which: Indices) -> Indices:
        """See :meth:`Order.gather`."""
        numbers = np.searchsorted(self._begins, which, side="right") - 1
        # Positions rise, and so do the numbers of their phases.
        rows = [self._orders[n].gather(which[numbers == n] - self._begins[n]) for n in np.unique(numbers)]
        return rows[0] if len(rows) == 1 else np.concatenate(rows)

    def needs(self, which: Indices) -> Needs:
        """See :meth:`Order.needs`."""
        numbers = np.searchsorted(self._begins, which, side="right") - 1
        return [
            need for n in np.unique(numbers) for need in self._orders[n].needs(which[numbers == n] - self._begins[n])
        ]


def _orders(phases: Sequence[Sequence[BlendPart]], begins: Sequence[int], cache: Path) -> Iterator[Order]:
    windows: dict[Place, Windows] = {}
    drawn: Counter[Place] = Counter()
    lengths = [*(end - begin for begin, end in pairwise(begins)), 0]
    for parts, length in zip(phases, lengths, strict=True):
        for part in parts:
            if part.file.prefix not in windows:
                windows[part.file.prefix] = fast(part)
        prefixes = [part.file.prefix for part in parts]
        orders = [Continued(windows[prefix], drawn[prefix]) for prefix in prefixes]
        if len(parts) == 1:
            drawn[prefixes[0]] += length
            yield orders[0]
        else:
            order = fast_blend(orders, parts, cache)
            drawn.update(dict(zip(prefixes, order.drawn(length).tolist(), strict=True)))
            yield order


def normalised(weights: Sequence[float]) -> list[float]:
    """``weights`` divided by their sum, summed in NumPy's order so that they equal megatron-core's to the last bit."""
    array = np.asarray(weights, dtype=np.float64)
    shares: list[float] = (array / array.sum()).tolist()
    return shares
