"""Files read as a stream: unpacked, with every kind of damage noticed, and decoded.

The readers of the standard library and of zstandard are not enough here: ``bz2`` silently ends where a later stream of
a file is damaged, and ``zstandard`` where a file is cut. Both would give a shorter data set without a word.
"""

from __future__ import annotations

import bz2
import codecs
import io
import itertools
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

from recipe_core.data.text_settings import Counts, Source
from recipe_core.errors import DataError

MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # the skippable frame that pzstd starts with
}
"""First bytes of a packed file."""
PIECE = 2048
"""Packed bytes that are unpacked at a time. Runs of one byte shrink 30,000 times and more; a small piece keeps even
those below 64 MB."""
BLOCK = 1 << 16
"""Bytes that are read from the disk at a time."""
AHEAD = 1 << 28
"""Bytes that are unpacked to tell a damaged archive from a damaged text."""

_LINE_END = ord("\n")
_numbers = itertools.count()


class _Unpacker(Protocol):
    """Common interface of the decompressors of zlib, bz2 and zstandard."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _gzip() -> _Unpacker:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _zstd() -> _Unpacker:
    try:
        import zstandard
    except ImportError as error:
        message = "files packed by Zstandard need the package zstandard: pip install 'recipe-core[text]'"
        raise DataError(message) from error
    unpacker: _Unpacker = zstandard.ZstdDecompressor().decompressobj()
    return unpacker


_UNPACKERS: dict[str, Callable[[], _Unpacker]] = {"gzip": _gzip, "bzip2": bz2.BZ2Decompressor, "zstd": _zstd}


def packing_of(start: bytes) -> str | None:
    """The compression of a file, by its first bytes."""
    return next((packing for magic, packing in MAGIC.items() if start.startswith(magic)), None)


class Unpacked(io.BufferedIOBase):
    """The bytes of a file, unpacked. Several streams may follow each other (multistream dumps, ``cat a.gz b.gz``).

    Raises:
        DataError: while reading; the file is cut or damaged, and where.
    """

    def __init__(self, path: Path, packing: str | None) -> None:
        self._path, self.packing = path, packing
        self._unpacker = _UNPACKERS[packing]() if packing else None
        self._file = path.open("rb", buffering=0)
        self._block, self._at = b"", 0
        self.consumed = 0
        """Bytes of the file that were taken, as they lie on the disk."""
        self.given = 0
        """Unpacked bytes that were given out."""

    @property
    def name(self) -> str:
        """The path, as for other files."""
        return str(self._path)

    def readable(self) -> bool:
        """True."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def read1(self, size: int = -1, /) -> bytes:
        """The next bytes, as many as are at hand; nothing at the end.

        ``size`` is ignored: io.TextIOWrapper takes what it gets, and pieces of the 8 KB that it asks for
        would be slow.
        """
        while piece := self._piece():
            if data := self._unpack(piece):
                self.given += len(data)
                return data
        if self._unpacker is not None and not self._unpacker.eof:
            raise DataError(
                f"{self._path}: ends at byte {self.consumed:,} in the middle of its {self.packing} data, so it is cut "
                "off; get the file again"
            )
        return b""

    def lines(self, longest: int) -> Iterator[tuple[int, bytes]]:
        """The lines, with their line ends, and the byte of the unpacked data where each starts.

        Of a line with more than ``longest`` bytes only the first ``longest`` + 1 are given, and no more are held.
        """
        start = length = 0
        parts: list[bytes] = []
        while data := self.read1():
            at = 0
            while at < len(data):
                end = data.find(b"\n", at) + 1 or len(data)
                if length <= longest:
                    parts.append(data[at : min(end, at + longest + 1 - length)])
                length += end - at
                if data[end - 1] == _LINE_END:
                    yield start, b"".join(parts)
                    start, length, parts = start + length, 0, []
                at = end
        if length:
            yield start, b"".join(parts)

    def _piece(self) -> bytes:
        """The next bytes of the file: a block of a plain one, a small piece of a packed one."""
        if self._at >= len(self._block):
            self._block, self._at = self._file.read(BLOCK), 0
        piece = self._block[self._at : self._at + (PIECE if self.packing else BLOCK)]
        self._at += len(piece)
        self.consumed += len(piece)
        return piece

    def _unpack(self, piece: bytes) -> bytes:
        if self._unpacker is None or self.packing is None:
            return piece
        unpacked = []
        try:
            while piece:
                if self._unpacker.eof:
                    # Zeros may follow gzip data (tapes and block devices pad with them); all else must be a stream.
                    piece = piece.lstrip(b"\0") if self.packing == "gzip" else piece
                    if not piece:
                        break
                    self._unpacker = _UNPACKERS[self.packing]()
                unpacked.append(self._unpacker.decompress(piece))
                piece = self._unpacker.unused_data if self._unpacker.eof else b""
        except Exception as error:
            # zstandard's own exception cannot be named where the package may be missing
            if not isinstance(error, (zlib.error, OSError)) and type(error).__name__ != "ZstdError":
                raise
            raise self._damaged(error) from error
        return b"".join(unpacked)

    def _damaged(self, error: Exception) -> DataError:
        return DataError(
            f"{self._path}: damaged near byte {max(self.consumed - PIECE, 0):,} ({self.packing}: {error}); get the "
            "file again, and compare its checksum with the one that its source publishes"
        )


class TextStream:
    """The text of a file, as a context manager that words the errors of reading it.

    Args:
        errors: an error handler of Python's decoders: ``"strict"``, or what ``counting`` returned.

    Raises:
        DataError: on leaving the context; the file cannot be read, or bytes in it are no text.
    """

    def __init__(self, source: Source, encoding: str, errors: str) -> None:
        self.path, self.encoding, self.errors = source.path, encoding, errors
        self.bytes = Unpacked(source.path, source.packing)
        self.is_utf8 = codecs.lookup(encoding).name == "utf-8"
        # The byte order mark that some editors write is no text.
        name = "utf-8-sig" if self.is_utf8 else encoding
        self.text = io.TextIOWrapper(self.bytes, encoding=name, errors=errors)

    @property
    def consumed(self) -> int:
        """Bytes of the file, as it lies on the disk, that were read so far."""
        return self.bytes.consumed

    def look_ahead(self) -> None:
        """Read on, where something is wrong with the text of an archive: its own damage, if any, is the cause.

        The checksums stand behind the data, so that nonsense comes out of a damaged archive first.

        Raises:
            DataError: the archive is damaged or cut off.
        """
        end = self.bytes.given + AHEAD
        while self.bytes.packing and self.bytes.given < end and self.bytes.read1():
            pass

    def __enter__(self) -> TextStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, UnicodeDecodeError):
                # The decoder saw the newest bytes and what it had kept of the bytes before.
                offset = self.bytes.given - len(error.object) + error.start
                raise self.undecodable(error, offset, self._line_at(offset)) from error
            if isinstance(error, OSError):
                raise DataError(f"{self.path}: cannot be read ({error.strerror or error})") from error
        finally:
            self.text.close()

    def _line_at(self, offset: int) -> int:
        """The line that holds byte ``offset`` of the unpacked file, which is read once more for it."""
        line, start = 1, 0
        with Unpacked(self.path, self.bytes.packing) as again:
            while start < offset and (data := again.read1()):
                line += data[: offset - start].count(b"\n")
                start = again.given
        return line

    def undecodable(self, error: UnicodeDecodeError, offset: int, line: int) -> DataError:
        """The error for bytes that are no text, at byte ``offset`` of the unpacked file, in its line ``line``.

        Raises:
            DataError: instead; the archive that they come from is damaged.
        """
        self.look_ahead()
        return DataError(
            f"{self.path}:{line}: byte {offset:,} of the text is not {self.encoding} ({error.reason}: "
            f"{error.object[error.start : error.end].hex(' ')}); set encoding=... to what the file is written in, or "
            "errors=replace"
        )


def counting(counts: Counts) -> str:
    """The name of a new error handler of Python's decoders, which replaces what is no text and counts it."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        counts.replaced += 1
        end: int = error.end if isinstance(error, UnicodeDecodeError) else 0
        return "\ufffd", end

    name = f"recipe_core.data.text.{next(_numbers)}"
    codecs.register_error(name, replace)
    return name


def first_bytes(path: Path, size: int) -> tuple[str | None, bytes]:
    """The compression of a file, and the first ``size`` bytes of its content.

    Raises:
        OSError: it cannot be read.
        DataError: it is damaged so near to its start.
    """
    with path.open("rb") as file:
        packing = packing_of(file.read(4))
    with Unpacked(path, packing) as unpacked:
        start = b""
        while len(start) < size and (data := unpacked.read1()):
            start += data
    return packing, start[:size]
