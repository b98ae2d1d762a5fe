"""HDF5 shards: their arrays, deterministic writing, and reading."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from recipe_bert_dp.data.stored import problems_of, require_regular
from recipe_bert_dp.prepare.sink import Sink
from recipe_core import DataError
from recipe_core.files import sync
from recipe_core.files.named import NamedPath, matches, read_lists

Arrays = dict[str, NDArray[Any]]

PLAIN: Mapping[str, str] = {
    "input_ids": "<i4",
    "input_mask": "i1",
    "segment_ids": "i1",
    "masked_lm_positions": "<i4",
    "masked_lm_ids": "<i4",
    "next_sentence_labels": "i1",
}
"""Arrays of NVIDIA's and Neuron's shards, in order: one sample per row."""
PACKED: Mapping[str, str] = {
    "input_ids": "<i4",
    "input_mask": "<i4",
    "segment_ids": "i1",
    "positions": "<i4",
    "masked_lm_positions": "<i4",
    "masked_lm_ids": "<i4",
    "next_sentence_positions": "<i4",
    "next_sentence_labels": "i1",
    "next_sentence_weights": "<i4",
}
"""Arrays of Habana's shards: several samples per row, which ``input_mask`` numbers from 1."""
ROWS_AT_ONCE = 4096
"""Rows in memory at a time, unless they are very long."""
_BYTES_AT_ONCE = 64 << 20
CHUNK = 256
"""Rows per compressed chunk."""
PACKING: Mapping[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
"""Filters that every HDF5 library reads. With the shuffle filter, gzip's fastest level gives files a tenth smaller than
its default level without, in half the time."""
ENDINGS = (".hdf5", ".h5")
_DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, MemoryError)
"""Errors that h5py raises for damaged files."""


def write(path: Path, rows: int, blocks: Iterable[Arrays], layout: Mapping[str, str], *, gzip: bool) -> None:
    """Write a shard of ``rows`` rows, and flush it to disk.

    The file holds no times or machine names, so that equal arrays give equal bytes.

    Raises:
        OSError: no space is left.
    """
    with Sink(path) as sink:
        with h5py.File(sink, "w", libver="earliest") as file:
            done = 0
            for block in blocks:
                _append(file, block, done, rows, layout, gzip)
                done += len(block["input_ids"])
                sink.check()
        sink.check()
    sync(path)


def _append(file: h5py.File, block: Arrays, at: int, rows: int, layout: Mapping[str, str], gzip: bool) -> None:
    for name, dtype in layout.items():
        values = block[name]
        if name not in file:
            shape = (rows, *values.shape[1:])
            packing = {**PACKING, "chunks": (min(rows, CHUNK), *shape[1:])} if gzip and rows else {}
            file.create_dataset(name, shape, dtype, track_times=False, **packing)
        file[name][at : at + len(values)] = values


@dataclass(frozen=True)
class ShardShape:
    """Shapes of a shard's arrays, from its header."""

    rows: int
    sequence: int
    predictions: int
    """Maximum number of predictions per row."""
    slots: int
    """Maximum number of samples per row; 0 for a plain shard."""
    chunk: int = field(default=0, compare=False)
    """Rows of the longest chunk, which is always read as a whole; 0 without chunks."""

    @property
    def packed(self) -> bool:
        return self.slots > 0

    @property
    def rows_at_once(self) -> int:
        """Rows to hold in memory at a time."""
        return max(1, min(ROWS_AT_ONCE, _BYTES_AT_ONCE // (13 * max(1, self.sequence, self.predictions))))

    @property
    def layout(self) -> Mapping[str, str]:
        return PACKED if self.packed else PLAIN


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open the shard ``path`` for reading.

    Raises:
        DataError: it is missing, truncated or not HDF5.
    """
    with naming(path):
        require_regular(path)
        file = h5py.File(path, "r")
    with file:
        yield file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn h5py's errors about a missing or damaged file into a DataError about ``path``."""
    try:
        yield
    except _DAMAGE as error:
        raise DataError(f"{path}: {_reason(path, error)}") from error


def _reason(path: Path, error: Exception) -> str:
    if not path.exists():
        return "there is no such file"
    if "truncated" in str(error):
        return "is truncated; copy or prepare it again"
    if path.suffix not in ENDINGS:
        return f"is no HDF5 file; with BERT's vocab.txt, a text becomes shards by\n{_own_text(path)}"
    return f"is no HDF5 file, or damaged ({error})"


def _own_text(path: Path) -> str:
    folder = path.with_name(f"{path.stem}-shards")
    lines = [
        ["recipe", "prepare", "bert_hdf5", f"inputs={path}", "vocabulary=vocab.txt", f"output={folder}"],
        ["recipe", "run", "bert_dp", f"data.files={folder}", "model.vocabulary=30522", "--out", f"runs/{path.stem}"],
        ["recipe", "generate", f"runs/{path.stem}"],
    ]
    return "\n".join(f"  {shlex.join(line)}" for line in lines)


def shape_of(file: h5py.File, path: Path) -> ShardShape:
    """Shape of a plain or packed shard, after checking that its arrays exist and their shapes agree.

    Raises:
        DataError: an array is missing or has another shape; the message lists all problems.
    """
    with naming(path):
        return _shape_of(file, path)


def _shape_of(file: h5py.File, path: Path) -> ShardShape:
    layout = PACKED if "next_sentence_positions" in file or "positions" in file else PLAIN
    if missing := [name for name in layout if name not in file]:
        raise DataError(
            f"{path}: lacks the array(s) {', '.join(missing)}; expected {', '.join(layout)}; it has "
            f"{', '.join(file) or 'none'}"
        )
    if problems := problems_of(file, layout):
        raise DataError(f"{path}: {'; '.join(problems)}")
    shapes = {name: tuple(int(n) for n in file[name].shape) for name in layout}
    rows, sequence = (*shapes["input_ids"], 0, 0)[:2]
    predictions = (*shapes["masked_lm_positions"], 0, 0)[1]
    slots = (*shapes["next_sentence_labels"], 0, 0)[1] if layout is PACKED else 0
    for name, shape in shapes.items():
        wide = {"m": predictions, "n": slots}.get(name[0], sequence)
        expected = (rows,) if name == "next_sentence_labels" and layout is PLAIN else (rows, wide)
        if shape != expected:
            problems.append(f"{name} has the shape {list(shape)}, expected {list(expected)}")
        if file[name].dtype.kind not in "iu":
            problems.append(f"{name} holds {file[name].dtype}, expected integers")
    if problems:
        raise DataError(f"{path}: {'; '.join(problems)}")
    chunk = max(file[name].chunks[0] if file[name].chunks else 0 for name in layout)
    return ShardShape(rows, sequence, predictions, slots, chunk)


def read(file: Mapping[str, Any], path: Path, shape: ShardShape, start: int, stop: int) -> Arrays:
    """Rows ``start`` to ``stop - 1`` of the arrays of ``file``, in the dtypes of the layout.

    Raises:
        DataError: the file is damaged there.
    """
    with damaged(path, start, stop):
        return {name: file[name][start:stop].astype(kind, copy=False) for name, kind in shape.layout.items()}


@contextmanager
def damaged(path: Path, start: int, stop: int) -> Iterator[None]:
    """Turn h5py's errors while rows ``start`` to ``stop`` are read into a DataError about ``path``."""
    try:
        yield
    except _DAMAGE as error:
        raise DataError(f"{path}: damaged, rows {start} to {stop} cannot be read ({error})") from error


def find(paths: Iterable[str | Path]) -> list[Path]:
    """Shards in ``paths``: files, those that match patterns, and those in folders at any depth, without hidden ones;
    ``@LIST`` names a file with such a path in each line.

    Raises:
        DataError: a path is missing, a pattern matches no shard, or no shard is in any of them.
    """
    files = [shard for named in read_lists([NamedPath(str(path)) for path in paths]) for shard in _shards(named)]
    if not files:
        raise DataError(f"{', '.join(map(str, paths))}: no shard (*.hdf5) in it; prepare some with recipe prepare")
    return list(dict.fromkeys(files))  # a shard that is named twice counts once


def _shards(named: NamedPath) -> list[Path]:
    path = named.path
    if named.weight is not None:
        raise DataError(f"{named}: shards take no weights, got {named.weight:g}; name the path alone")
    if path.is_dir():
        return _below(path)
    if path.exists():
        return [path]
    if not named.is_pattern:
        raise DataError(f"{named}: there is no such file or folder; expected HDF5 shards or a folder of them")
    found = [shard for one in matches(path) for shard in (_below(one) if one.is_dir() else [one])]
    if not (shards := [shard for shard in found if shard.suffix in ENDINGS]):
        raise DataError(f"{named}: no shard (*.hdf5) matches this pattern")
    return shards


def _below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in ENDINGS and not _hidden(p.relative_to(folder)))


def kind_of(path: Path) -> str:
    """``training`` or ``test``, by the name of the shard: ``test`` has to be a word of it, unlike in
    ``latest.hdf5``."""
    name = path.name.lower()
    return "test" if re.search(r"(?<![a-z])test", name) and "training" not in name else "training"


def vocabulary_of(paths: Iterable[Path]) -> Path | None:
    """The vocab.txt in the folder of a shard or in its parent, if any."""
    folders = {folder for path in paths for folder in path.resolve().parents[:2]}
    return next((folder / "vocab.txt" for folder in sorted(folders) if (folder / "vocab.txt").is_file()), None)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def used_predictions(positions: NDArray[Any]) -> NDArray[np.int64]:
    """Number of predictions per row: those before the first position 0, where [CLS] is, which is never predicted."""
    used: NDArray[np.int64] = np.cumprod(positions != 0, axis=1, dtype=np.int64).sum(axis=1)
    return used
