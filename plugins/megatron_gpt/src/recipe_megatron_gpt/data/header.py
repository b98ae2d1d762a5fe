"""Headers of Megatron's .idx files: enough to check a pair of files and count its tokens. No numpy here.

An .idx file is: magic, version, dtype code, number of sequences, number of document boundaries, then the sizes of the
sequences (int32, tokens), where each starts in the .bin file (int64, bytes), and the document boundaries (int64,
sequence numbers, the first 0), all little-endian. The .bin file holds only token ids.
"""

from __future__ import annotations

import shlex
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from errno import ELOOP, ENOENT, ENOTDIR
from io import FileIO
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar

from recipe_core import DataError
from recipe_core.files.objects import ObjectMissingError, ObjectPath, ObjectStat
from recipe_core.files.objects.copies import local_file

Place = Path | ObjectPath
"""A path on this machine, or an address of object storage."""
MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
LAYOUT = struct.Struct("<9sQBQQ")
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
WIDTHS = {"int32": 4, "uint16": 2}
"""The token types that training reads, and their size in bytes."""
_BLOCKS, _BLOCK = 32, 256
"""Blocks of the sizes that are read for an estimate, and the sequences of each."""
_OWN = {"own-1mb": 3e6, "own-10mb": 3e7, "own-100mb": float("inf")}
"""The variants for the user's own text, with the largest text in bytes for which each is recommended."""
_AGAIN = "copy or prepare the files again"


@dataclass(frozen=True)
class Header:
    """The header of an .idx file, and the length of its .bin file."""

    prefix: Place
    dtype: str
    """``"uint16"`` or ``"int32"``."""
    sequences: int
    documents: int
    bin_bytes: int
    idx: Path
    """The .idx file, or a copy of it in the cache."""
    stat: ObjectStat | None = None
    """Of the .bin object in object storage; None for a file."""

    @property
    def width(self) -> int:
        """Bytes of one token."""
        return WIDTHS[self.dtype]

    def tokens(self, *parts: range) -> list[int]:
        """Tokens in the sequences of each part, from their starts alone: sequences follow each other without a gap."""
        with self.idx.open("rb", buffering=0) as file:
            return [
                (self._start(part.stop, file) - self._start(part.start, file)) // self.width if part else 0
                for part in parts
            ]

    def some_sizes(self, part: range) -> Sequence[int]:
        """Tokens of the sequences of ``part``; of a large part, of 8,192, in blocks spread over it."""
        sizes = array("i")
        with self.idx.open("rb", buffering=0) as file:
            for first in part[:: max(_BLOCK, -(-len(part) // _BLOCKS))]:
                file.seek(LAYOUT.size + 4 * first)
                sizes.frombytes(file.read(4 * min(_BLOCK, part.stop - first)))
        return sizes

    def _start(self, sequence: int, idx: FileIO) -> int:
        # the byte of the .bin file at which `sequence` starts; one past the last: the end of the file
        if sequence == self.sequences:
            return self.bin_bytes
        idx.seek(LAYOUT.size + 4 * self.sequences + 8 * sequence)
        return int.from_bytes(idx.read(8), "little", signed=True)


P = TypeVar("P", Path, ObjectPath, Place)


def bin_path(prefix: P) -> P:
    """Path of the token ids; the prefix may contain dots."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: P) -> P:
    """Path of the index of sequences; the prefix may contain dots."""
    return prefix.with_name(f"{prefix.name}.idx")


def read_header(prefix: Place) -> Header:
    """Read the header of the two files of ``prefix``, and check it against their lengths.

    An .idx object of object storage is copied into the cache of this machine first, once for each of its versions.

    Raises:
        DataError: a file is missing, cut off, of another format or of another token type.
        DiskError: the cache cannot be written.
    """
    if isinstance(prefix, ObjectPath):
        stats = _stat(idx_path(prefix), bin_path(prefix)), _stat(bin_path(prefix), idx_path(prefix))
        copy = local_file(idx_path(prefix), stats[0])
        if copy is None:  # deleted meanwhile
            raise DataError(f"{idx_path(prefix)}: not found; {_AGAIN}")
        with copy.open("rb", buffering=0) as file:
            return _header(prefix, copy, file.read(LAYOUT.size), stats[0].size, stats[1].size, stats[1])
    idx, data = idx_path(prefix), bin_path(prefix)
    try:
        idx_bytes, bin_bytes = _length(idx, data), _length(data, idx)
        with idx.open("rb", buffering=0) as file:
            head = file.read(LAYOUT.size)
    except PermissionError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}); ask its owner for that right") from error
    return _header(prefix, idx, head, idx_bytes, bin_bytes, None)


def _header(prefix: Place, file: Path, head: bytes, idx_bytes: int, bin_bytes: int, stat: ObjectStat | None) -> Header:
    idx = idx_path(prefix)
    if not MAGIC.startswith(head[: len(MAGIC)]):
        raise DataError(
            f"{idx}: starts with {head[: len(MAGIC)]!r}, expected {MAGIC!r}; this is no index of token files"
        )
    if len(head) < LAYOUT.size:
        raise DataError(f"{idx}: cut off after {idx_bytes} bytes, its header alone takes {LAYOUT.size}; {_AGAIN}")
    _, version, code, sequences, boundaries = LAYOUT.unpack(head)
    if version != VERSION:
        raise DataError(f"{idx}: is of version {version}, expected {VERSION}; {_AGAIN}")
    dtype = DTYPES.get(code, "unknown")
    if dtype not in WIDTHS:
        raise DataError(
            f"{idx}: holds tokens of type {dtype} (code {code}), expected uint16 (8) or int32 (4); "
            "prepare the files again"
        )
    expected = LAYOUT.size + 12 * sequences + 8 * boundaries
    if idx_bytes < expected:
        raise DataError(
            f"{idx}: cut off after {idx_bytes:,} bytes; the {sequences:,} sequences and {boundaries:,} document "
            f"boundaries of its header take {expected:,}; {_AGAIN}"
        )
    return Header(prefix, dtype, sequences, max(0, boundaries - 1), bin_bytes, file, stat)


def _stat(place: ObjectPath, other: ObjectPath) -> ObjectStat:
    try:
        return place.stat()
    except ObjectMissingError as error:
        if other.exists():
            raise DataError(
                f"{place}: not found, though {other.name} is there; the two files belong together, {_AGAIN}"
            ) from error
        raise DataError(
            f"{place}: not found, and {other.name} neither; data.files takes addresses without the ending .bin or "
            ".idx, or those of a folder of token files"
        ) from error


def _length(path: Path, other: Path) -> int:
    try:
        status = path.stat()
    except OSError as error:
        if error.errno not in (ENOENT, ENOTDIR, ELOOP):
            raise
    else:
        if S_ISREG(status.st_mode):
            return status.st_size
    if other.is_file():
        raise DataError(f"{path}: not found, though {other.name} is there; the two files belong together, {_AGAIN}")
    prefix = path.with_suffix("")
    if prefix.is_file():
        raise DataError(
            f"{prefix}: is no pair of token files (.bin and .idx); a text becomes one by\n{own_text(prefix)}"
        )
    if any(prefix.glob("*.idx")):
        raise DataError(f"{path}: not found; the folder {prefix} holds token files: data.files={prefix}")
    if prefix.is_dir():
        raise DataError(f"{prefix}: there are no token files (.bin and .idx) in this folder; name another")
    raise DataError(
        f"{path}: not found, and {other.name} neither; data.files takes paths without their ending, "
        "relative ones from the current folder"
    )


def own_text(path: Path) -> str:
    """The commands that prepare the text ``path``, train a model on it and generate from it."""
    variant = next(name for name, most in _OWN.items() if path.stat().st_size <= most)
    folder = path.with_suffix("") if path.suffix else path.with_name(f"{path.name}-tokens")
    run = f"runs/{folder.name}"
    lines = [
        ["recipe", "prepare", "gpt_indexed", f"inputs={path}", f"output={folder}", "documents=blank_line"],
        ["recipe", "run", f"megatron_gpt:{variant}", f"data.files={folder}", "--out", run],
        ["recipe", "generate", run],
    ]
    return "\n".join(f"  {shlex.join(line)}" for line in lines)
