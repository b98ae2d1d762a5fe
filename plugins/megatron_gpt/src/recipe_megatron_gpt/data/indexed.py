"""Megatron's token files: memory-mapped reading, and writing."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

import recipe_index
from recipe_core import DataError, atomic_file
from recipe_megatron_gpt.data.arrays.cached import cached_array
from recipe_megatron_gpt.data.arrays.mapped import Access, mapped
from recipe_megatron_gpt.data.header import (
    DTYPES,
    LAYOUT,
    MAGIC,
    VERSION,
    Header,
    Place,
    bin_path,
    idx_path,
    read_header,
)
from recipe_megatron_gpt.data.remote.tokens import ObjectTokens

_DIGEST = 16
"""Bytes of the digest of the sizes."""


@dataclass(frozen=True)
class IndexedFile:
    """The two files of ``prefix``, memory mapped; see :mod:`recipe_megatron_gpt.data.header` for their contents."""

    prefix: Place
    tokens: NDArray[np.uint16] | NDArray[np.int32]
    """The whole .bin file: ``[tokens]``. From object storage, only what :attr:`source` has made present: see
    :meth:`read`."""
    sizes: NDArray[np.int32]
    """Tokens of each sequence: ``[sequences]``."""
    starts: NDArray[np.int64]
    """Start of each sequence in ``tokens``: ``[sequences]``. They follow each other without a gap."""
    digest: str
    """Hash of the sizes; every index over these files depends only on them."""
    header: Header
    source: ObjectTokens | None = None
    """The token ids in object storage; None for a file."""

    @classmethod
    def open(cls, prefix: Place, cache: Path | None = None, access: Access = "any") -> IndexedFile:
        """Map the two files and check them against each other.

        Args:
            prefix: their path without its ending.
            cache: folder of this machine for the checked sizes and starts of large files. All processes share them, and
                the time to open does not depend on the number of sequences. A changed .idx file is checked again.
            access: expected access pattern of the tokens.

        Raises:
            DataError: a file is missing, damaged, cut off, or of a token type that training does not read.
            DiskError: the cache cannot be written.
        """
        header = read_header(prefix)
        idx, data = idx_path(prefix), bin_path(prefix)
        source = None
        if not header.bin_bytes:
            raise DataError(f"{data}: is empty; prepare the files again from a text that is not")
        table = _table(header) if cache is None else _shared_table(header, cache)
        digest, places = table[:_DIGEST], table[_DIGEST:]
        starts, sizes = places[: 8 * header.sequences].view(np.int64), places[8 * header.sequences :].view(np.int32)
        if isinstance(data, Path):
            tokens = mapped(data, header.dtype, access=access)
        else:
            source = ObjectTokens(data, header.stat or data.stat(), header.dtype)
            tokens = source.array
        file = cls(prefix, tokens, sizes, starts, digest.tobytes().hex(), header, source)
        needed = header.width * file.count(range(header.sequences))
        if needed > header.bin_bytes:
            raise DataError(
                f"{data}: cut off after {header.bin_bytes:,} bytes; {idx.name} says that it holds {needed:,}; "
                "copy or prepare the files again"
            )
        return file

    @cached_property
    def documents(self) -> NDArray[np.int64]:
        """First sequence of each document, and the number of sequences: ``[documents + 1]``; read on first use."""
        return _parsed(self.header).documents

    def require_whole(self) -> None:
        """Check that the .bin file was not truncated since it was opened: the map would read zeros in its last page.

        A removed file passes, because the map keeps its content. An object is of one version whenever it is read.

        Raises:
            DataError: it was truncated.
        """
        if not isinstance(self._data, Path):
            return
        try:
            size = self._data.stat().st_size
        except FileNotFoundError:
            return
        if size < self.tokens.nbytes:
            raise DataError(
                f"{self._data}: was cut while the run read it: it has {size:,} bytes, and had {self.tokens.nbytes:,}; "
                "copy or prepare the files again, and start the run again"
            )

    @cached_property
    def _data(self) -> Place:
        return bin_path(self.prefix)

    def count(self, part: range) -> int:
        """Tokens in the sequences of ``part``."""
        last = part.stop - 1
        return int(self.starts[last]) + int(self.sizes[last]) - int(self.starts[part.start]) if part else 0

    def sequence(self, number: int) -> NDArray[np.uint16] | NDArray[np.int32]:
        """Token ids of sequence ``number``: ``[size]``."""
        return self.read(int(self.starts[number]), int(self.starts[number]) + int(self.sizes[number]))

    def read(self, start: int, stop: int) -> NDArray[np.uint16] | NDArray[np.int32]:
        """Token ids ``start`` to before ``stop`` of the .bin file, or of those that it has: ``[tokens]``."""
        if self.source is None:
            return self.tokens[start:stop]
        return self.source.read(start, min(stop, self.tokens.size))

    def document_of(self, sequence: int) -> int:
        """Index of the document that contains ``sequence``."""
        return int(np.searchsorted(self.documents, sequence, side="right")) - 1


def _shared_table(header: Header, cache: Path) -> NDArray[np.uint8]:
    # one table per machine and state of the .idx file; those of older states are removed
    idx = header.idx
    state = idx.stat()
    made_from: list[Any] = [state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    made_from += [header.dtype, header.sequences, header.documents]
    place = blake2b(os.fsencode(idx.absolute()), digest_size=6).hexdigest()
    name = f"{header.prefix.name}-{place}-sequences"
    return cached_array(cache, name, made_from, header.sequences, lambda: _table(header), replaces=True)


def _table(header: Header) -> NDArray[np.uint8]:
    """Check the .idx file; return the digest of its sizes, the starts and the sizes, concatenated as bytes.

    After the header's 34 bytes the arrays of the file are unaligned, but compiled code requires alignment.
    """
    parsed = _parsed(header)
    table = np.empty(_DIGEST + 12 * header.sequences, np.uint8)
    starts, sizes = np.split(table[_DIGEST:], [8 * header.sequences])
    np.floor_divide(parsed.pointers, np.int64(header.width), out=starts.view(np.int64))
    sizes.view(np.int32)[:] = parsed.sizes
    table[:_DIGEST] = np.frombuffer(blake2b(sizes.data, digest_size=_DIGEST).digest(), np.uint8)
    return table


def _parsed(header: Header) -> recipe_index.Idx:
    prefix = header.prefix
    try:
        return recipe_index.parse_idx(mapped(header.idx, np.uint8, access="sequential"))
    except ValueError as error:
        raise DataError(f"{idx_path(prefix)}: is damaged: {error}; copy or prepare the files again") from error
    except OSError as error:
        raise DataError(f"{idx_path(prefix)}: cannot be read: {error}") from error


def best_dtype(vocabulary: int) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    """The token type that Megatron uses for a vocabulary of this size (``DType.optimal_dtype``)."""
    return np.dtype(np.uint16) if vocabulary < 65500 else np.dtype(np.int32)


class IndexedWriter:
    """Writes ``prefix``.bin and ``prefix``.idx as Megatron's ``IndexedDatasetBuilder`` does, byte for byte.

    .. code-block:: python

        with IndexedWriter(Path("corpus"), best_dtype(50257)) as writer:
            writer.add_document([ids])

    Token ids are written immediately; only the sizes stay in memory (12 bytes per sequence and document). The two files
    appear under their names when the block ends without an error; otherwise existing files stay.

    Raises:
        DataError: an id does not fit the token type.
        DiskError: the disk is full or cannot be written.
    """

    def __init__(self, prefix: Path, dtype: DTypeLike) -> None:
        self.prefix = prefix
        self.dtype = np.dtype(dtype)
        if self.dtype.name not in ("uint16", "int32"):
            raise ValueError(f"dtype: expected uint16 or int32, got {self.dtype.name}")
        self._sizes = array("i")
        self._boundaries = array("q", [0])
        self._files = ExitStack()

    def __enter__(self) -> IndexedWriter:
        with ExitStack() as files:
            # Exited in reverse order: the .bin file gets its name before the .idx file, without which it is ignored.
            self._idx = files.enter_context(atomic_file(idx_path(self.prefix)))
            self._bin = files.enter_context(atomic_file(bin_path(self.prefix)))
            self._out = files.enter_context(self._bin.open("wb", buffering=1 << 20))
            self._files = files.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is not None:
            return self._files.__exit__(kind, error, trace)
        with self._files:
            self._out.flush()
            self._write_idx()
            # After a power failure between the two, an old .idx file must not accompany the new .bin file.
            idx_path(self.prefix).unlink(missing_ok=True)
        return None

    def add_document(self, sequences: Sequence[ArrayLike]) -> None:
        """Append one document of one or several sequences, each ``[size]`` token ids."""
        for sequence in sequences:
            ids = self._checked(sequence)
            self._out.write(ids.data)
            self._sizes.append(ids.size)
        self._boundaries.append(len(self._sizes))

    def add_documents(self, ids: ArrayLike, sizes: ArrayLike) -> None:
        """Append documents of one sequence each: their concatenated ids, and ``[documents]`` sizes."""
        flat, lengths = self._checked(ids), np.asarray(sizes, dtype=np.int32)
        if lengths.ndim != 1 or (lengths < 0).any() or lengths.sum(dtype=np.int64) != flat.size:
            raise ValueError(f"sizes: expected one dimension, none negative, adding up to the {flat.size} ids")
        first = len(self._sizes) + 1
        self._out.write(flat.data)
        self._sizes.frombytes(lengths.tobytes())
        self._boundaries.extend(range(first, first + lengths.size))

    def _checked(self, ids: ArrayLike) -> NDArray[np.uint16] | NDArray[np.int32]:
        array = np.asarray(ids)
        if array.dtype == self.dtype and array.ndim == 1:
            return np.ascontiguousarray(array)
        limits = np.iinfo(self.dtype)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(f"ids: expected one dimension of integers, got {array.ndim} of {array.dtype.name}")
        for extreme in (array.min(initial=0), array.max(initial=0)):
            if not limits.min <= extreme <= limits.max:
                raise DataError(
                    f"{bin_path(self.prefix)}: document {len(self._boundaries) - 1} has the token id {extreme}, which "
                    f"{self.dtype.name} cannot hold ({limits.min} to {limits.max}); write int32"
                )
        return array.astype(self.dtype)

    def _write_idx(self) -> None:
        sizes = np.frombuffer(self._sizes, dtype=np.int32)
        boundaries = np.frombuffer(self._boundaries, dtype=np.int64)
        with self._idx.open("wb") as file:
            write_idx(file, self.dtype, sizes, boundaries)


def write_idx(
    file: BinaryIO, dtype: np.dtype[Any], sizes: NDArray[np.int32], boundaries: NDArray[np.int64], block: int = 1 << 20
) -> None:
    """Write an .idx file; the two arrays may be memory maps, as they are read in blocks.

    Args:
        dtype: type of the tokens.
        sizes: tokens of each sequence, ``[sequences]``.
        boundaries: first sequence of each document, and the number of sequences, ``[documents + 1]``.
        block: entries in memory at a time.
    """
    code = next(code for code, name in DTYPES.items() if name == dtype.name)
    file.write(LAYOUT.pack(MAGIC, VERSION, code, sizes.size, boundaries.size))
    blocks = [slice(at, at + block) for at in range(0, sizes.size, block)]
    for part in blocks:
        file.write(np.ascontiguousarray(sizes[part]).data)
    start = 0
    for part in blocks:
        ends = start + np.cumsum(sizes[part], dtype=np.int64) * dtype.itemsize
        file.write(np.concatenate(([start], ends[:-1])).astype(np.int64).data)
        start = int(ends[-1])
    for at in range(0, boundaries.size, block):
        file.write(np.ascontiguousarray(boundaries[at : at + block]).data)
