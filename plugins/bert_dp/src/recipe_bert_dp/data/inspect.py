"""``recipe inspect`` and ``recipe verify`` for folders of BERT's shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.decode import Pieces
from recipe_bert_dp.data.shards import Arrays, Shape
from recipe_bert_dp.data.verify import problems_of
from recipe_core import DataError
from recipe_core.data.prepare import Inspection, file_problems, read_manifest, without_hashes

MOST_ROWS = 200_000
"""Rows that ``inspect`` reads, evenly from all shards: enough for a histogram of any data set."""
BARS = 16
_BESIDE = ("vocab.txt", "*_metadata.json")
"""Data sets of earlier releases have these files, and their manifests do not list them."""
MOST_PROBLEMS = 50


class BertFiles:
    """HDF5 shards, plain or packed; as :class:`recipe_core.data.prepare.DataFiles` describes."""

    def detect(self, path: Path) -> bool:
        """True if ``path`` is a shard, or a folder with one; also if none can be read, so that the reason is said."""
        try:
            paths = shards.find([path])
        except DataError:
            return False
        unreadable = 0
        for shard in paths:
            try:
                with shards.opened(shard) as file, shards.naming(shard):
                    if "masked_lm_positions" in file:
                        return True
            except DataError:
                unreadable += shard.suffix in shards.ENDINGS
        return unreadable == len(paths)

    def inspect(self, path: Path, tokenizer: Path | None) -> Inspection:
        """Samples, tokens, padding, predictions, a histogram of the lengths, and a sample as text."""
        paths = shards.find([path])
        shapes = _shapes(paths)
        shape = next(iter(shapes.values()))
        rows = sum(s.rows for s in shapes.values())
        tally = _Tally(shape)
        example = None
        pieces = Pieces.find(tokenizer, paths)
        for block in _sampled(shapes):
            tally.add(block)
            if example is None and pieces is not None and len(block["input_ids"]):
                example = pieces.example(block)
        training = sum(s.rows for p, s in shapes.items() if shards.kind_of(p) == "training")
        facts = [
            ("shards", f"{len(paths):,}"),
            ("rows", f"{rows:,} ({training:,} training, {rows - training:,} test)"),
            ("tokens per row", f"{shape.sequence:,}"),
            ("places for predictions", f"{shape.predictions:,} a row"),
            *tally.facts(rows),
        ]
        kind = "packed BERT shards (HDF5)" if shape.packed else "BERT shards (HDF5)"
        return Inspection(kind=kind, facts=tuple(facts), lengths=tally.histogram(), example=example)

    def verify(self, path: Path) -> list[str]:
        """Everything wrong with the shards; they are read as a whole."""
        try:
            paths = shards.find([path])
        except DataError as error:
            return [str(error)]
        pieces = Pieces.find(None, paths)
        found = file_problems(path, read_manifest(path), _BESIDE) if path.is_dir() else []
        shapes: dict[Path, Shape] = {}
        for shard in paths:
            if len(found) >= MOST_PROBLEMS:
                return [*found[:MOST_PROBLEMS], "and perhaps more: the rest was not read"]
            try:
                with shards.opened(shard) as file:
                    shapes[shard] = shards.shape_of(file, shard)
                    for start, block in _blocks(file, shard, shapes[shard]):
                        found += problems_of(block, shapes[shard], pieces, f"{shard}: row", start)
            except DataError as error:
                found.append(str(error))
        kinds = {(s.sequence, s.predictions, s.slots) for s in shapes.values()}
        if len(kinds) > 1:
            listed = "; ".join(f"{s} tokens, {p} predictions, {n or 1} samples a row" for s, p, n in sorted(kinds))
            found.append(f"{path}: the shards do not have one shape: {listed}")
        return found

    def unchecked(self, path: Path) -> str:
        """Say that there are no hashes, where there are none."""
        return without_hashes(path if path.is_dir() else path.parent)


def _shapes(paths: list[Path]) -> dict[Path, Shape]:
    found = {}
    for path in paths:
        with shards.opened(path) as file:
            found[path] = shards.shape_of(file, path)
    return found


def _blocks(file: Any, path: Path, shape: Shape) -> Iterator[tuple[int, Arrays]]:
    for start in range(0, shape.rows, shape.rows_at_once):
        stop = min(start + shape.rows_at_once, shape.rows)
        yield start, shards.read(file, path, shape, start, stop)


def _sampled(shapes: dict[Path, Shape]) -> Iterator[Arrays]:
    """The first rows of each shard, in all at most MOST_ROWS, but at least one row of each."""
    each = max(1, MOST_ROWS // len(shapes))
    for path, shape in shapes.items():
        with shards.opened(path) as file:
            for start in range(0, min(shape.rows, each), shape.rows_at_once):
                yield shards.read(file, path, shape, start, min(start + shape.rows_at_once, shape.rows, each))


class _Tally:
    """Counts over the rows that are read."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._lengths = np.zeros(shape.sequence + 1, dtype=np.int64)
        self._rows = self._samples = self._predictions = self._random = 0

    def add(self, block: Arrays) -> None:
        """Count the rows of ``block``."""
        mask = block["input_mask"]
        real = np.ones(len(mask), dtype=bool)[:, None]
        if self._shape.packed:
            real = block["next_sentence_weights"] != 0
            lengths = (mask[:, None, :] == np.arange(1, self._shape.slots + 1)[:, None]).sum(axis=2)[real]
        else:
            lengths = mask.sum(axis=1, dtype=np.int64)
        self._lengths += np.bincount(lengths, minlength=self._lengths.size)[: self._lengths.size]
        self._rows += len(mask)
        self._samples += lengths.size
        self._predictions += int(np.count_nonzero(block["masked_lm_positions"]))
        self._random += int(block["next_sentence_labels"].reshape(real.shape)[real].sum(dtype=np.int64))

    def facts(self, rows: int) -> list[tuple[str, str]]:
        """Lines of the table; ``rows`` is how many the data set has."""
        tokens = int(self._lengths @ np.arange(self._lengths.size))
        if not self._rows or not tokens:
            return [("tokens", "0")]
        read = "" if self._rows == rows else f", estimated from {self._rows:,} rows"
        padding = 1 - tokens / (self._rows * self._shape.sequence)
        return [
            ("samples per row", f"{self._samples / self._rows:.3f}"),
            ("tokens", f"{round(tokens * rows / self._rows):,} (without padding{read})"),
            ("padding", f"{padding:.2%}"),
            ("predicted", f"{self._predictions / tokens:.2%} of the tokens"),
            ("random next sentence", f"{self._random / self._samples:.2%} of the samples"),
        ]

    def histogram(self) -> tuple[tuple[str, int], ...]:
        """Samples by their length."""
        sequence = self._shape.sequence
        edges: NDArray[np.int64] = np.unique(np.linspace(0, sequence, min(BARS, sequence) + 1).astype(np.int64))
        counts = [int(self._lengths[a + 1 : b + 1].sum()) for a, b in pairwise(edges)]
        names = [f"{a + 1}-{b}" if b > a + 1 else str(b) for a, b in pairwise(edges)]
        return tuple(zip(names, counts, strict=True))
