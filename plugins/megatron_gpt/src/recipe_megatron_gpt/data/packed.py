"""The order ``fast``, and its rows of whole documents with ``data.rows=packed``.

The documents of an epoch (the sequences of the file, which for GPT are usually documents) are packed into few rows of
``sequence`` tokens. One that is longer than a row is cut into pieces of a row, and its rest is packed. Every token but
the first of its document is predicted once in an epoch, so that the last one needs no place in a row: it is a label.
The rows of all epochs are the same, each epoch shuffles them in another way, and so a sample depends on the seed and
its number alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recipe_index
from recipe_core import DataError
from recipe_index import bert
from recipe_megatron_gpt.data.arrays.cached import cached_array
from recipe_megatron_gpt.data.arrays.lengths import most_pieces
from recipe_megatron_gpt.data.header import bin_path
from recipe_megatron_gpt.data.order import MASKED, BlendPart, Indices, Needs, Windows, cut, forgetful, window_seed

PIECE = np.dtype([("start", np.int64), ("size", np.int32), ("place", np.int32)])
"""A part of a document in a row: its first token in the file, its tokens, and its first position in the row."""


@dataclass(frozen=True)
class PackedWindow:
    """One epoch over a part of a file, packed and shuffled."""

    part: BlendPart
    pieces: NDArray[np.void]
    """Of the type :data:`PIECE`, row by row."""
    rows: NDArray[np.int64]
    """First piece of each row, and the number of pieces: ``[rows + 1]``."""
    shuffle: NDArray[np.uint32] | NDArray[np.int64]
    """Order of the rows: ``[rows]``."""

    def gather(self, which: Indices) -> Indices:
        """See :meth:`Order.gather`; padding has the token 0.

        Raises:
            DataError: a token id is not in the vocabulary, or the file was truncated.
        """
        self.part.file.require_whole()
        found = np.zeros((which.size, len(MASKED), self.part.sequence), dtype=np.int64)
        numbers = self.shuffle[which].astype(np.int64)
        for row, number in zip(found, numbers, strict=True):
            for document, (start, size, place) in enumerate(self._pieces(number).tolist(), 1):
                ids, inside = self.part.file.tokens[start : start + size + 1], slice(place, place + size)
                row[0, inside], row[1, inside], row[2, inside], row[3, inside] = ids[:-1], ids[1:], document, True
        self.part.file.require_whole()
        if found[:, :2].min() < 0 or found[:, :2].max() >= self.part.limit:
            raise self._unknown_id(numbers)
        return found

    def needs(self, which: Indices) -> Needs:
        """See :meth:`Order.needs`."""
        pieces = np.concatenate([self._pieces(row) for row in self.shuffle[which].astype(np.int64)])
        return [(self.part.file, np.stack([pieces["start"], pieces["start"] + pieces["size"] + 1], axis=1))]

    def _pieces(self, row: np.int64) -> NDArray[np.void]:
        return self.pieces[self.rows[row] : self.rows[row + 1]]

    def _unknown_id(self, rows: Indices) -> DataError:
        starts = np.concatenate([self._pieces(row)["start"] for row in rows])
        sequences = np.searchsorted(self.part.file.starts, starts, side="right") - 1
        error = self.part.unknown_id(map(int, sequences))
        assert error is not None
        return error


def fast(part: BlendPart) -> Windows:
    """The order ``fast``: epochs, each with another permutation of its rows, which are cut or packed.

    Raises:
        DataError: the part is empty, or packed and without a document of two tokens.
    """
    return _packed(part) if part.packed else cut(part)


def _packed(part: BlendPart) -> Windows:
    part.epochs(1)  # refuses an empty part
    made_from: list[Any] = [part.file.digest, part.range.start, part.range.stop, part.sequence]
    prefix, entries = f"{part.file.prefix.name}-{part.split}", most_pieces(len(part.range), part.tokens, part.sequence)
    pieces = cached_array(part.cache, f"{prefix}-pieces", made_from, entries, lambda: _pieces(part))
    if not pieces.size:
        raise DataError(
            f"{bin_path(part.file.prefix)}: no document of the split {part.split!r} has two tokens, so that there is "
            "nothing to predict; take data.rows=cut, or give longer documents"
        )

    def first_pieces() -> NDArray[np.int64]:
        return np.append(np.flatnonzero(pieces["place"] == 0), pieces.size)

    rows = cached_array(part.cache, f"{prefix}-rows", made_from, entries, first_pieces)
    samples = rows.size - 1

    def key(number: int) -> tuple[str, list[Any]]:
        return f"{prefix}-shuffle", [*made_from, window_seed(part, number)]

    def window(number: int) -> PackedWindow:
        def shuffle() -> NDArray[Any]:
            return recipe_index.shuffle_index(samples, samples, window_seed(part, number), False)

        return PackedWindow(part, pieces, rows, cached_array(part.cache, *key(number), samples, shuffle, access="any"))

    return forgetful(part, samples, window, lambda number: [key(number)])


def _pieces(part: BlendPart) -> NDArray[np.void]:
    inside = slice(part.range.start, part.range.stop)
    starts = part.file.starts[inside]
    predicted = np.maximum(part.file.sizes[inside].astype(np.int64) - 1, 0)
    counts = -(-predicted // part.sequence)
    owners = np.repeat(np.arange(counts.size), counts)
    offsets = (np.arange(owners.size) - (np.cumsum(counts) - counts)[owners]) * part.sequence
    sizes = np.minimum(predicted[owners] - offsets, part.sequence).astype(np.int32)
    order, rows = bert.pack(sizes, part.sequence, 0, 0)
    pieces = np.empty(order.size, dtype=PIECE)
    pieces["start"], pieces["size"] = (starts[owners] + offsets)[order], sizes[order]
    before = np.cumsum(pieces["size"], dtype=np.int64) - pieces["size"]
    pieces["place"] = before - np.repeat(before[rows[:-1]], np.diff(rows))
    return pieces
