"""Numbers of samples and epochs, and sizes of the indices over token files. No numpy here."""

from __future__ import annotations

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
