"""The order of the samples of a token file.

A *window* is a run of whole epochs over one part of a file, cut into samples that overlap by one token, and a
permutation of those samples. The order ``fast`` lays windows of one epoch end to end, each shuffled anew: it knows
no end and depends on the seed alone, not on the length of the run. The order ``megatron`` repeats one window, which
is as long as the run asks for and shuffled across its epochs, as megatron-core does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import recipe_index
from recipe_core import ConfigError, DataError
from recipe_megatron_gpt.data.arrays import cached_array, forget
from recipe_megatron_gpt.data.header import bin_path
from recipe_megatron_gpt.data.indexed import IndexedFile
from recipe_megatron_gpt.data.lengths import WindowSize, epochs_for, samples_of
from recipe_megatron_gpt.data.mapped import prefetch

Indices = NDArray[np.int64]


class Order(Protocol):
    """An endless order of samples."""

    def gather(self, which: Indices) -> Indices:
        """Token ids of the samples at these places of the order: ``[places] -> [places, sequence + 1]``."""
        ...


@dataclass(frozen=True)
class Part:
    """The sequences of one file that belong to one split, and how they are cut into samples."""

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
    """Its weight in a blend; None where the sizes decide."""

    @cached_property
    def tokens(self) -> int:
        """Tokens in one epoch."""
        return self.file.count(self.range)

    def samples(self, epochs: int = 1) -> int:
        """Number of samples in ``epochs``; the last token is a label only."""
        return samples_of(self.tokens, self.sequence, epochs)

    def epochs(self, samples: int) -> int:
        """Fewest epochs that hold ``samples``.

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


@dataclass(frozen=True)
class Window:
    """Some epochs over a part, cut and shuffled."""

    part: Part
    order: NDArray[np.int32]
    """Sequences one behind the other: ``[epochs * sequences]``."""
    cuts: NDArray[np.int32] | NDArray[np.int64]
    """Start of each sample, as a place in ``order`` and an offset into that sequence: ``[samples + 1, 2]``."""
    shuffle: NDArray[np.uint32] | NDArray[np.int64]
    """Order of the samples: ``[samples]``."""

    def gather(self, which: Indices) -> Indices:
        """As :meth:`Order.gather`, for places below the number of samples.

        Raises:
            DataError: a token id is none of the vocabulary, the file was cut, or its disk failed.
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
        file.require_whole()  # only now: it may be cut at any time
        return ids

    def _explained(self, chosen: Indices, error: ValueError) -> DataError:
        """The error for the chosen samples, in terms of documents."""
        file, limit = self.part.file, self.part.limit
        path = bin_path(file.prefix)
        for first, last in ((self.cuts[c, 0], self.cuts[c + 1, 0]) for c in chosen):
            for number in map(int, self.order[first : last + 1]):
                ids = file.sequence(number)
                wrong = np.flatnonzero((ids < 0) | (ids >= limit))
                if wrong.size:
                    return DataError(
                        f"{path}: document {file.document_of(number)} (sequence {number}) has the token id "
                        f"{ids[wrong[0]]} at position {wrong[0]}, expected ids from 0 to below {limit}, the "
                        "vocabulary of the model; raise model.vocabulary, or use the tokenizer that the model is for"
                    )
        return DataError(f"{path}: its index in {self.part.cache} does not fit it ({error}); remove that folder")


class Windows:
    """Windows of equal length, end to end."""

    def __init__(self, samples: int, window: Callable[[int], Window]) -> None:
        self.samples = samples
        # Reading goes forward: around a border two are in use, and the arrays of the older ones can go.
        self._window = lru_cache(maxsize=2)(window)
        self._window(0)  # so that what is wrong with the data shows before the run starts

    def gather(self, which: Indices) -> Indices:
        """As :meth:`Order.gather`."""
        numbers, places = np.divmod(which, self.samples)
        if numbers[0] == numbers[-1]:  # places rise, so all are in one window: no second copy of the ids
            return self._window(int(numbers[0])).gather(places)
        return np.concatenate([self._window(int(n)).gather(places[numbers == n]) for n in np.unique(numbers)])


def fast(part: Part) -> Windows:
    """Epoch after epoch, each in a new order; of a part that is shorter than a sample, as many at once as fill one.

    Windows of training that lie behind are removed from the cache, but for the first, which every start opens.
    """
    epochs = part.epochs(1)
    samples = part.samples(epochs)
    kept_from = 1

    def keys(number: int) -> Keys:
        mixed = blake2b(f"{part.seed} {part.split} {number}".encode(), digest_size=4).digest()
        return Keys(part, epochs, samples, samples, int.from_bytes(mixed, "little"), megatron=False)

    def window(number: int) -> Window:
        nonlocal kept_from
        # Evaluations begin again at the first window, and so come back to all of theirs.
        while part.split == "train" and kept_from < number - 1:
            for name in keys(kept_from).made_from:
                forget(part.cache, *keys(kept_from).key(name))
            kept_from += 1
        return _window(keys(number))

    return Windows(samples, window)


def megatron(part: Part, requested: int | None) -> Windows:
    """The order of megatron-core 0.16's ``GPTDataset(num_samples=requested)``, which starts again after its end.

    There, all epochs are shuffled together, except for the last one where less than 80 % of it is needed.

    Args:
        part: what to read.
        requested: samples that the run will read; None for one epoch.

    Raises:
        ConfigError: the seed is none that NumPy's RandomState takes.
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
    whole = _window(Keys(part, epochs, samples, separate, part.seed, megatron=True))
    return Windows(samples, lambda number: whole)


@dataclass(frozen=True)
class Keys:
    """The parts of a window; the first ``separate`` samples are shuffled apart from the rest."""

    part: Part
    epochs: int
    samples: int
    separate: int
    seed: int
    megatron: bool

    @property
    def made_from(self) -> dict[str, list[Any]]:
        """The sources of each array of the window, by its name."""
        part = self.part
        all_of = [part.file.digest, part.range.start, part.range.stop, self.epochs, self.separate < self.samples]
        all_of += [self.seed, self.megatron]
        return {
            "order": all_of,
            "cuts": [*all_of, part.sequence, self.samples],
            "shuffle": [*all_of, self.separate, self.samples],
        }

    def key(self, name: str) -> tuple[str, list[Any]]:
        """Name and origin of an array, as the cache takes them."""
        return f"{self.part.file.prefix.name}-{self.part.split}-{name}", self.made_from[name]


def _window(keys: Keys) -> Window:
    """Build or map the three arrays."""
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
