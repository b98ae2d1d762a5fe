"""``recipe inspect`` and ``recipe verify`` for folders of BERT's shards."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.decode import WordPieces
from recipe_bert_dp.data.shards import Arrays, ShardShape
from recipe_bert_dp.data.verify import problems_of
from recipe_core import DataError
from recipe_core.data.prepare import Inspection, file_problems, read_manifest, without_hashes

MOST_ROWS = 200_000
"""Number of rows that ``inspect`` reads, evenly from all shards: enough for a histogram of any data set."""
BARS = 16
_UNLISTED = ("vocab.txt", "*_metadata.json")
"""Files that the manifests of earlier releases do not list."""
MOST_PROBLEMS = 50


class BertFiles:
    """HDF5 shards, plain or packed; see :class:`recipe_core.data.prepare.DataFiles`."""

    def detect(self, path: Path) -> bool:
        """True if ``path`` is a shard or a folder with one; also if none can be read, so that the reason is
        reported."""
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
        """Number of samples, tokens and predictions, padding, a histogram of the lengths, and a sample as text."""
        paths = shards.find([path])
        shapes = _shapes(paths)
        shape = next(iter(shapes.values()))
        rows = sum(s.rows for s in shapes.values())
        tally = _Tally(shape)
        example = None
        pieces = WordPieces.find(tokenizer, paths)
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
        """All problems of the shards, which are read completely."""
        try:
            paths = shards.find([path])
        except DataError as error:
            return [str(error)]
        pieces = WordPieces.find(None, paths)
        problems = file_problems(path, read_manifest(path), _UNLISTED) if path.is_dir() else []
        shapes: dict[Path, ShardShape] = {}
        for shard in paths:
            if len(problems) >= MOST_PROBLEMS:
                return [*problems[:MOST_PROBLEMS], "and perhaps more: the rest was not read"]
            try:
                with shards.opened(shard) as file:
                    shapes[shard] = shards.shape_of(file, shard)
                    for start, block in _blocks(file, shard, shapes[shard]):
                        problems += problems_of(block, shapes[shard], pieces, f"{shard}: row", start)
            except DataError as error:
                problems.append(str(error))
        kinds = {(s.sequence, s.predictions, s.slots) for s in shapes.values()}
        if len(kinds) > 1:
            listed = "; ".join(f"{s} tokens, {p} predictions, {n or 1} samples a row" for s, p, n in sorted(kinds))
            problems.append(f"{path}: the shards do not have one shape: {listed}")
        return problems

    def unchecked(self, path: Path) -> str:
        """Note that the data set has no hashes, or an empty text."""
        return without_hashes(path if path.is_dir() else path.parent)


def _shapes(paths: list[Path]) -> dict[Path, ShardShape]:
    shapes = {}
    for path in paths:
        with shards.opened(path) as file:
            shapes[path] = shards.shape_of(file, path)
    return shapes


def _blocks(file: Any, path: Path, shape: ShardShape) -> Iterator[tuple[int, Arrays]]:
    for start in range(0, shape.rows, shape.rows_at_once):
        stop = min(start + shape.rows_at_once, shape.rows)
        yield start, shards.read(file, path, shape, start, stop)


def _sampled(shapes: dict[Path, ShardShape]) -> Iterator[Arrays]:
    # The first rows of each shard, at least one, about MOST_ROWS in total.
    rows_per_shard = max(1, MOST_ROWS // len(shapes))
    for path, shape in shapes.items():
        with shards.opened(path) as file:
            for start in range(0, min(shape.rows, rows_per_shard), shape.rows_at_once):
                stop = min(start + shape.rows_at_once, shape.rows, rows_per_shard)
                yield shards.read(file, path, shape, start, stop)


class _Tally:
    def __init__(self, shape: ShardShape) -> None:
        self._shape = shape
        self._lengths = np.zeros(shape.sequence + 1, dtype=np.int64)
        self._rows = self._samples = self._predictions = self._random = 0

    def add(self, block: Arrays) -> None:
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
        # ``rows`` is the number of rows in the data set, of which some were read.
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
        sequence = self._shape.sequence
        edges: NDArray[np.int64] = np.unique(np.linspace(0, sequence, min(BARS, sequence) + 1).astype(np.int64))
        counts = [int(self._lengths[a + 1 : b + 1].sum()) for a, b in pairwise(edges)]
        names = [f"{a + 1}-{b}" if b > a + 1 else str(b) for a, b in pairwise(edges)]
        return tuple(zip(names, counts, strict=True))
