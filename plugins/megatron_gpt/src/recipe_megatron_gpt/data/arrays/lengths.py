"""Numbers of samples and epochs, and sizes of the indices over token files. No numpy here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SMALL = 100_000
"""Entries below which building an array is faster than opening its file; such arrays stay in memory."""
PERIOD = 1 << 20
"""Samples after which the order ``fast`` of several files repeats its choice of files (never its samples)."""
SURPLUS = 0.005
"""Surplus of samples that megatron-core builds per file, as a fraction (mid_level_dataset_surplus)."""
MOST_ORDERED = 1 << 32
"""Most entries of an order of sequences, over all its epochs (``kMostOrdered`` of recipe_index)."""
_MOST_INT32 = (1 << 31) - 1
_MOST_UINT32 = (1 << 32) - 1


def samples_of(tokens: int, sequence: int, epochs: int = 1) -> int:
    """Samples in ``epochs`` over ``tokens``; the last token is only a label."""
    return max(0, (epochs * tokens - 1) // sequence)


def epochs_for(samples: int, tokens: int, sequence: int) -> int:
    """Fewest epochs that contain ``samples``."""
    return -(-(samples * sequence + 1) // tokens)


def most_pieces(sequences: int, tokens: int, sequence: int) -> int:
    """Upper bound of the pieces of documents in packed rows."""
    return sequences + tokens // sequence


def attended_pairs(sizes: Iterable[int], sequence: int, *, packed: bool) -> float:
    """Share of the pairs of tokens of a row that are of one document, for documents of these ``sizes``.

    For rows cut from a stream it is the expected share: the pairs at a distance d in a document of n tokens, n - d of
    them, are in one row with the probability 1 - d / sequence.
    """
    pairs = tokens = 0.0
    for size in sizes:
        if packed:
            rows, rest = divmod(max(0, size - 1), sequence)
            pairs, tokens = pairs + rows * sequence**2 + rest**2, tokens + max(0, size - 1)
        else:
            near = min(size, sequence)
            pairs += 2 * size * near - near**2 - (size / sequence) * near**2 + 2 * near**3 / (3 * sequence)
            tokens += size
    return min(1.0, pairs / (tokens * sequence)) if tokens else 1.0


@dataclass(frozen=True)
class WindowSize:
    """Sizes of the three arrays of a window, see :class:`recipe_megatron_gpt.data.order.Window`."""

    sequences: int
    """Of one epoch."""
    epochs: int
    samples: int

    @property
    def ordered(self) -> int:
        """Entries of the order of sequences."""
        return self.epochs * self.sequences

    @property
    def arrays(self) -> dict[str, tuple[int, int]]:
        """Entries, as the cache counts them, and bytes of each array, by name."""
        cut = 4 if self.ordered <= _MOST_INT32 else 8
        place = 4 if self.samples < _MOST_UINT32 - 1 else 8
        return {
            "order": (self.ordered, 4 * self.ordered),
            "cuts": (2 * self.samples, 2 * cut * (self.samples + 1)),
            "shuffle": (self.samples, place * self.samples),
        }


@dataclass(frozen=True)
class PackedSize:
    """Sizes of the arrays of packed rows, at most, see :mod:`recipe_megatron_gpt.data.packed`."""

    sequences: int
    tokens: int
    sequence: int
    """Tokens of a row."""

    ordered = 0

    @property
    def epochs(self) -> int:
        """Epochs of a window."""
        return 1

    @property
    def samples(self) -> int:
        """Rows, if they are full."""
        return self.tokens // self.sequence + 1

    @property
    def arrays(self) -> dict[str, tuple[int, int]]:
        """See :attr:`WindowSize.arrays`."""
        pieces = most_pieces(self.sequences, self.tokens, self.sequence)
        return {
            "pieces": (pieces, 16 * pieces),
            "rows": (pieces, 8 * (self.samples + 1)),
            "shuffle": (self.samples, 4 * self.samples),
        }
