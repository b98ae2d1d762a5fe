"""The order of the samples of a token file.

A *window* is a run of whole epochs over one part of a file, cut into samples that overlap by one token, and a
permutation of those samples. The order ``fast`` concatenates windows of one epoch, each with another permutation: it
has no end and depends only on the seed, not on the length of the run. The order ``megatron`` repeats one window, which
is as long as the run requires and shuffled across its epochs, as in megatron-core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import recipe_index
from recipe_core import ConfigError, DataError
from recipe_megatron_gpt.data.arrays.cached import cached_array, forget
from recipe_megatron_gpt.data.arrays.lengths import WindowSize, epochs_for, samples_of
from recipe_megatron_gpt.data.arrays.mapped import prefetch
from recipe_megatron_gpt.data.header import bin_path
from recipe_megatron_gpt.data.indexed import IndexedFile

Indices = NDArray[np.int64]
MASKED = ("tokens", "labels", "document_ids", "loss_mask")
"""Rows of a sample with a document mask, in this order, see :mod:`recipe_core.ops.documents`."""


Needs = list[tuple[IndexedFile, Indices]]
"""Files, and ranges of their tokens that make up samples: first and one past the last, ``[ranges, 2]``."""


class Order(Protocol):
    """An endless order of samples."""

    def gather(self, which: Indices) -> Indices:
        """The samples at positions ``which`` of the order, ``[count]``.

        Returns:
            token ids ``[count, sequence + 1]``; with a document mask, :data:`MASKED`: ``[count, 4, sequence]``.
        """
        ...

    def needs(self, which: Indices) -> Needs:
        """Tokens that :meth:`gather` reads for these positions."""
        ...


@dataclass(frozen=True)
class BlendPart:
    """The sequences of one file that belong to one split, with the parameters of their samples."""

    file: IndexedFile
    split: str
    range: range
    sequence: int
    """Tokens in one sample."""
    seed: int
    limit: int
    """Token ids must be below this."""
    cache: Path
    weight: float | None = None
    """Weight in a blend; None: proportional to the size."""
    document_mask: bool = False
    """Give each sample's documents: the sequences, which the order shuffles."""
    packed: bool = False
    """Fill rows with whole documents, see :mod:`recipe_megatron_gpt.data.packed`."""

    @cached_property
    def tokens(self) -> int:
        """Tokens in one epoch."""
        return self.file.count(self.range)

    def samples(self, epochs: int = 1) -> int:
        """Number of samples in ``epochs``; the last token is only a label."""
        return samples_of(self.tokens, self.sequence, epochs)

    def epochs(self, samples: int) -> int:
        """Fewest epochs that contain ``samples``.

        Raises:
            DataError: the part is empty.
        """
        if not self.tokens:
            raise DataError(
                f"{bin_path(self.file.prefix)}: the split {self.split!r} gets {len(self.range)} of its "
                f"{self.file.sizes.size} sequences and no token; give it a larger share in data.split, prepare a text "
                "with documents=blank_line (a file without blank lines is one document), or give more data"
            )
        return epochs_for(samples, self.tokens, self.sequence)

    def unknown_id(self, sequences: Iterable[int]) -> DataError | None:
        """The error for the first token of ``sequences`` that is not in the vocabulary; it names the document."""
        for number in sequences:
            ids = self.file.sequence(number)
            wrong = np.flatnonzero((ids < 0) | (ids >= self.limit))
            if wrong.size:
                return DataError(
                    f"{bin_path(self.file.prefix)}: document {self.file.document_of(number)} (sequence {number}) has "
                    f"the token id {ids[wrong[0]]} at position {wrong[0]}, expected ids from 0 to below {self.limit}, "
                    "the vocabulary of the model; raise model.vocabulary, or use the tokenizer that the model is for"
                )
        return None


@dataclass(frozen=True)
class Window:
    """Some epochs over a part, cut into samples and shuffled."""

    part: BlendPart
    order: NDArray[np.int32]
    """Order of the sequences: ``[epochs * sequences]``."""
    cuts: NDArray[np.int32] | NDArray[np.int64]
    """Start of each sample, as an index into ``order`` and an offset into that sequence: ``[samples + 1, 2]``."""
    shuffle: NDArray[np.uint32] | NDArray[np.int64]
    """Order of the samples: ``[samples]``."""

    def gather(self, which: Indices) -> Indices:
        """See :meth:`Order.gather`; positions are below the number of samples.

        Raises:
            DataError: a token id is not in the vocabulary, the file was truncated, or its disk failed.
        """
        file, chosen = self.part.file, self.shuffle[which].astype(np.int64)
        try:
            ids = recipe_index.gather(
                file.tokens, file.starts, file.sizes, self.order, self.cuts, chosen, self.part.sequence, self.part.limit
            )
        except OSError as error:
            file.require_whole()
            path = bin_path(file.prefix)
            raise DataError(f"{path}, or its index in {self.part.cache}: cannot be read: {error}") from error
        except ValueError as error:
            file.require_whole()
            raise self._explained(chosen, error) from error
        file.require_whole()  # after reading: it may be truncated at any time
        return self._masked(ids, chosen) if self.part.document_mask else ids

    def needs(self, which: Indices) -> Needs:
        """See :meth:`Order.needs`."""
        file, found = self.part.file, []
        for sample in self.shuffle[which].astype(np.int64):
            (first, offset), (last, end) = self.cuts[sample].tolist(), self.cuts[sample + 1].tolist()
            sequences = self.order[first : last + 1]
            ranges = np.empty((sequences.size, 2), np.int64)
            ranges[:, 0] = file.starts[sequences]
            ranges[:, 1] = ranges[:, 0] + file.sizes[sequences]
            ranges[-1, 1] = ranges[-1, 0] + end + 1  # the last token of a sample is the first of the next
            ranges[0, 0] += offset
            if int((ranges[:, 1] - ranges[:, 0]).sum()) != self.part.sequence + 1:
                raise DataError(
                    f"{bin_path(file.prefix)}: its index in {self.part.cache} does not fit it; remove that folder"
                )
            found.append(ranges)
        return [(file, np.concatenate(found))]

    def _masked(self, ids: Indices, chosen: Indices) -> Indices:
        documents, places = np.empty_like(ids), np.arange(ids.shape[1])
        for row, sample in zip(documents, chosen, strict=True):
            (first, offset), (last, _) = self.cuts[sample], self.cuts[sample + 1]
            sizes = self.part.file.sizes[self.order[first : last + 1]].astype(np.int64)
            sizes[0] -= offset
            row[:] = np.searchsorted(np.cumsum(sizes[sizes > 0]), places, side="right") + 1
        same = documents[:, 1:] == documents[:, :-1]
        return np.stack([ids[:, :-1], ids[:, 1:], documents[:, :-1], same], axis=1)

    def _explained(self, chosen: Indices, error: ValueError) -> DataError:
        cuts = ((self.cuts[c, 0], self.cuts[c + 1, 0]) for c in chosen)
        unknown = self.part.unknown_id(int(number) for first, last in cuts for number in self.order[first : last + 1])
        path = bin_path(self.part.file.prefix)
        return unknown or DataError(
            f"{path}: its index in {self.part.cache} does not fit it ({error}); remove that folder"
        )


class Windows:
    """Consecutive windows of equal length."""

    def __init__(self, samples: int, window: Callable[[int], Order]) -> None:
        self.samples = samples
        # Reading proceeds forwards: two windows are in use around a boundary, and older ones can be freed.
        self._window = lru_cache(maxsize=2)(window)
        self._window(0)  # so that problems of the data are raised before the run starts

    def gather(self, which: Indices) -> Indices:
        """See :meth:`Order.gather`."""
        numbers, places = np.divmod(which, self.samples)
        if numbers[0] == numbers[-1]:  # positions rise, so all are in one window: no copy of the ids
            return self._window(int(numbers[0])).gather(places)
        return np.concatenate([self._window(int(n)).gather(places[numbers == n]) for n in np.unique(numbers)])

    def needs(self, which: Indices) -> Needs:
        """See :meth:`Order.needs`."""
        numbers, places = np.divmod(which, self.samples)
        return [need for n in np.unique(numbers) for need in self._window(int(n)).needs(places[numbers == n])]


def cut(part: BlendPart) -> Windows:
    """The order ``fast`` of rows that are cut from the stream; short parts repeat until they contain a sample."""
    epochs = part.epochs(1)
    samples = part.samples(epochs)

    def keys(number: int) -> WindowKeys:
        return WindowKeys(part, epochs, samples, samples, window_seed(part, number), megatron=False)

    return forgetful(
        part,
        samples,
        lambda number: _window(keys(number)),
        lambda number: [keys(number).key(name) for name in keys(number).made_from],
    )


def window_seed(part: BlendPart, number: int) -> int:
    """The seed of a window of the order ``fast``, below 2**32."""
    mixed = blake2b(f"{part.seed} {part.split} {number}".encode(), digest_size=4).digest()
    return int.from_bytes(mixed, "little")


def forgetful(
    part: BlendPart,
    samples: int,
    window: Callable[[int], Order],
    arrays: Callable[[int], Iterable[tuple[str, list[Any]]]],
) -> Windows:
    """Windows of ``samples`` each whose ``arrays``, arguments of :func:`cached_array`, leave the cache.

    Those of past windows of training do, except of the first, which every start opens.
    """
    kept_from = 1

    def build(number: int) -> Order:
        nonlocal kept_from
        # Evaluations start again at the first window, and so reuse all of theirs.
        while part.split == "train" and kept_from < number - 1:
            for name, made_from in arrays(kept_from):
                forget(part.cache, name, made_from)
            kept_from += 1
        return window(number)

    return Windows(samples, build)


def megatron(part: BlendPart, requested: int | None) -> Windows:
    """The order of megatron-core 0.16's ``GPTDataset(num_samples=requested)``, repeated after its end.

    All epochs are shuffled together, except the last one if less than 80 % of it is needed.

    Args:
        part: part of a file to read.
        requested: samples that the run will read; None for one epoch.

    Raises:
        ConfigError: NumPy's RandomState does not accept the seed.
        DataError: the part is empty.
    """
    if not 0 <= part.seed < 1 << 32:
        raise ConfigError(f"train.seed: data.order=megatron takes seeds from 0 to 2**32 - 1, got {part.seed}")
    epochs = part.epochs(requested or 1)
    samples = part.samples(epochs)
    separate = samples
    if epochs > 1 and requested is not None:
        before = part.samples(epochs - 1)
        if requested - before < int(0.80 * part.samples()):
            separate = before
    whole = _window(WindowKeys(part, epochs, samples, separate, part.seed, megatron=True))
    return Windows(samples, lambda number: whole)


@dataclass(frozen=True)
class WindowKeys:
    """The parameters of a window; the first ``separate`` samples are shuffled apart from the rest."""

    part: BlendPart
    epochs: int
    samples: int
    separate: int
    seed: int
    megatron: bool

    @property
    def made_from(self) -> dict[str, list[Any]]:
        """Everything that each array of the window depends on, by the array's name."""
        part = self.part
        common = [part.file.digest, part.range.start, part.range.stop, self.epochs, self.separate < self.samples]
        common += [self.seed, self.megatron]
        return {
            "order": common,
            "cuts": [*common, part.sequence, self.samples],
            "shuffle": [*common, self.separate, self.samples],
        }

    def key(self, name: str) -> tuple[str, list[Any]]:
        """Arguments ``name`` and ``made_from`` of :func:`cached_array` for an array."""
        return f"{self.part.file.prefix.name}-{self.part.split}-{name}", self.made_from[name]


def _window(keys: WindowKeys) -> Window:
    part, epochs, separate, samples = keys.part, keys.epochs, keys.separate, keys.samples

    def documents() -> NDArray[np.int32]:
        exposed = np.arange(part.range.start, part.range.stop, dtype=np.int32)
        return recipe_index.document_order(exposed, epochs, keys.seed, separate < samples, keys.megatron)

    def cuts() -> NDArray[Any]:
        prefetch(part.file.sizes)
        return recipe_index.sample_index(part.file.sizes, order, part.sequence, samples)

    def shuffle() -> NDArray[Any]:
        # Megatron's one generator has shuffled the sequences before it shuffles the samples.
        count = len(part.range)
        drawn = [(epochs - 1) * count, count] if separate < samples else [epochs * count]
        return recipe_index.shuffle_index(separate, samples, keys.seed, keys.megatron, drawn)

    entries = {name: count for name, (count, _) in WindowSize(len(part.range), epochs, samples).arrays.items()}
    order = cached_array(part.cache, *keys.key("order"), entries["order"], documents)
    return Window(
        part,
        order,
        cached_array(part.cache, *keys.key("cuts"), entries["cuts"], cuts),
        cached_array(part.cache, *keys.key("shuffle"), entries["shuffle"], shuffle, access="any"),
    )
