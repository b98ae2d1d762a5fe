"""Read files as a stream: decompressed and decoded, with all damage detected.

The readers of the standard library and of zstandard do not suffice: ``bz2`` silently stops at a damaged later stream of
a file, and ``zstandard`` at the end of a truncated file. Both would silently shorten the data set.
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
from typing import Any, Protocol

from recipe_core.data.text_settings import Counts, Source
from recipe_core.errors import DataError
from recipe_core.files.objects.reading import ObjectFile

MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # the skippable frame that pzstd starts with
}
"""First bytes of a compressed file."""
PIECE = 2048
"""Compressed bytes per decompression call. Runs of one byte compress 30,000 times and more; a small piece keeps even
those below 64 MB."""
BLOCK = 1 << 16
"""Bytes per read from disk."""
AHEAD = 1 << 28
"""Bytes that are decompressed to distinguish a damaged archive from a damaged text."""
FEW = 10
"""Number of replaced places in a file that is always accepted."""

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
    """Return the compression of a file, by its first bytes."""
    return next((packing for magic, packing in MAGIC.items() if start.startswith(magic)), None)


class Unpacked(io.BufferedIOBase):
    """The decompressed bytes of a file of one or more streams (multistream dumps, ``cat a.gz b.gz``).

    Of a file that is not compressed, bytes ``start`` to ``stop`` - 1 alone.

    Raises:
        DataError: while reading; the file is truncated or damaged.
    """

    def __init__(self, path: Path | ObjectFile, packing: str | None, start: int = 0, stop: int | None = None) -> None:
        self._path, self.packing = path, packing
        self._unpacker = _UNPACKERS[packing]() if packing else None
        self._file = path.open("rb", buffering=0)
        self._file.seek(start)
        self._left = None if stop is None else stop - start
        self._block, self._at = b"", 0
        self.consumed = 0
        """Bytes of the file on disk that were read."""
        self.given = start
        """Offset in the decompressed file up to which bytes were returned."""

    @property
    def name(self) -> str:
        """The path, as for other files."""
        return str(self._path)

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def read1(self, size: int = -1, /) -> bytes:
        """Return the next available bytes; empty at the end.

        ``size`` is ignored: io.TextIOWrapper accepts any number of bytes, and the 8 KB that it requests would be slow.
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
        """Yield the lines, with their line ends, and the offset in the decompressed data where each starts.

        Of a line with more than ``longest`` bytes only the first ``longest`` + 1 are held and returned.
        """
        start, length = self.given, 0
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
        """Next bytes of the file: a block, or a small piece if it is compressed."""
        if self._at >= len(self._block):
            self._block, self._at = self._file.read(BLOCK if self._left is None else min(BLOCK, self._left)), 0
            self._left = None if self._left is None else self._left - len(self._block)
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
                    # Zeros may follow gzip data (tapes and block devices pad with them); other bytes must be a stream.
                    piece = piece.lstrip(b"\0") if self.packing == "gzip" else piece
                    if not piece:
                        break
                    self._unpacker = _UNPACKERS[self.packing]()
                unpacked.append(self._unpacker.decompress(piece))
                piece = self._unpacker.unused_data if self._unpacker.eof else b""
        except Exception as error:
            # zstandard's exception cannot be named, since the package may be missing
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
    """The text of a file; a context manager that words read errors.

    Args:
        replacing: replaces and counts invalid bytes; None: they are an error.

    Raises:
        DataError: on leaving the context; the file cannot be read, or has invalid bytes.
    """

    def __init__(self, source: Source, encoding: str, replacing: Replacing | None) -> None:
        self.source, self.path, self.encoding, self.replacing = source, source.path, encoding, replacing
        self.errors = replacing.name if replacing else "strict"
        self.bytes = Unpacked(source.path, source.packing, source.start, source.stop)
        if replacing:
            replacing.begin(self)
        self.is_utf8 = codecs.lookup(encoding).name == "utf-8"
        # Skips a byte order mark, which is one only at the start of a file.
        name = "utf-8-sig" if self.is_utf8 and not source.start else encoding
        self.text = io.TextIOWrapper(self.bytes, encoding=name, errors=self.errors)

    @property
    def consumed(self) -> int:
        """Bytes of the file on disk that were read so far."""
        return self.bytes.consumed

    def look_ahead(self) -> None:
        """Read ahead after an error in the text of an archive, in case damage to the archive is the cause.

        Checksums follow the data, so a damaged archive first yields invalid text.

        Raises:
            DataError: the archive is damaged or truncated.
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
                offset = self.offset_of(error)
                raise self.undecodable(error, offset, self.line_at(offset)) from error
            if isinstance(error, OSError):
                raise DataError(f"{self.path}: cannot be read ({error.strerror or error})") from error
        finally:
            self.text.close()

    def offset_of(self, error: UnicodeDecodeError) -> int:
        """Return the offset in the decompressed file of the byte that the decoder of :attr:`text` refused."""
        # Its input is the newest bytes and the rest of earlier ones.
        return self.bytes.given - len(error.object) + error.start

    def line_at(self, offset: int) -> int:
        """Return the number of the line with byte ``offset`` of the decompressed file, which is read again for it.

        Lines of a piece are counted from its start.
        """
        line, start = 1, self.source.start
        with Unpacked(self.path, self.bytes.packing, start) as again:
            while start < offset and (data := again.read1()):
                line += data[: offset - start].count(b"\n")
                start = again.given
        return line

    def undecodable(self, error: UnicodeDecodeError, offset: int, line: int) -> DataError:
        """Return the error for invalid bytes at byte ``offset`` of the decompressed file, in line ``line``.

        Raises:
            DataError: the archive is damaged, which is the cause.
        """
        self.look_ahead()
        return DataError(
            f"{self.source}:{line}: byte {offset:,} of the text is not {self.encoding} ({error.reason}: "
            f"{error.object[error.start : error.end].hex(' ')}); {better_encoding(self.path, offset, self.encoding)}, "
            "or errors=replace"
        )


class Replacing:
    """Error handler of Python's decoders that replaces invalid bytes by U+FFFD, up to a limit per file.

    Args:
        most: maximum share of a file's bytes that may be replaced, if there are more than :data:`FEW` places.

    Raises:
        DataError: while reading; a file exceeds the limit, so it has another encoding.
    """

    _JUDGED_EVERY = 1000
    places: int
    """Replaced places of the current file."""
    decoded: int | None
    """Offset in the file of the bytes that are being decoded; None: :attr:`TextStream.text` decodes them."""

    def __init__(self, counts: Counts, most: float) -> None:
        self._counts, self._most = counts, most
        self.name = f"recipe_core.data.text.{next(_numbers)}"
        codecs.register_error(self.name, self)

    def begin(self, stream: TextStream) -> None:
        """Start with another file."""
        self._stream, self._first, self.places, self.decoded = stream, 0, 0, None

    def __call__(self, error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeDecodeError):
            raise error
        if not self.places:
            start = self.decoded
            self._first = self._stream.offset_of(error) if start is None else start + error.start
        self._counts.replaced += 1
        self.places += 1
        if self.places % self._JUDGED_EVERY == 0:
            self.judge()
        return "\ufffd", error.end

    def judge(self) -> None:
        """Refuse the current file if too many of its bytes so far are invalid.

        Raises:
            DataError: they are.
        """
        source = self._stream.source
        # The pieces of a file are judged together when they are merged; one alone can exceed what the file may have.
        size = self._stream.bytes.given if source.is_whole else source.size
        if too_many(self.places, size, self._most):
            report = self.report()
            self._stream.look_ahead()
            raise DataError(f"{report}. If it is right, most_replaced=1 puts U+FFFD in the place of each")

    def report(self) -> str:
        """Describe the replaced places of the current file, with the first one and advice."""
        stream, first = self._stream, self._first
        return (
            f"{stream.source}:{stream.line_at(first)}: {self.places:,} places in "
            f"{stream.bytes.given - stream.source.start:,} bytes are not "
            f"{stream.encoding}, the first at byte {first:,}; {better_encoding(stream.path, first, stream.encoding)}"
        )


def too_many(places: int, size: int, most: float) -> bool:
    """True if ``places`` that are replaced in a file of ``size`` bytes show that it has another encoding."""
    return places > max(FEW, most * size)


def better_encoding(path: Path | ObjectFile, offset: int, encoding: str) -> str:
    """Return advice for a file that is not written in ``encoding``, as its byte ``offset`` shows."""
    usual = "set encoding=... to what the file is written in"
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return usual
    size = 1 << 15
    with Unpacked(path, first_bytes(path, 4)[0]) as content:
        taken = b""
        while content.given < offset + size and (data := content.read1()):
            taken = (taken + data)[-3 * size :]
    text = taken.decode(encoding, "replace")
    wrong = text.count("\ufffd")
    if wrong < sum(not character.isascii() for character in text) / 2:  # damaged text of this encoding
        return usual
    matches: list[Any] = list(from_bytes(taken))
    if not matches or codecs.lookup(matches[0].encoding).name == codecs.lookup(encoding).name:
        return usual
    best = matches[0].chaos, matches[0].coherence
    equal = [match for match in matches if (match.chaos, match.coherence) == best]
    western = any("cp1252" in match.could_be_from_charset for match in equal)  # the most frequent one
    return f"set encoding={'cp1252' if western else matches[0].encoding}, which seems to fit"


def first_bytes(path: Path | ObjectFile, size: int) -> tuple[str | None, bytes]:
    """Return the compression of a file and the first ``size`` bytes of its content.

    Raises:
        OSError: it cannot be read.
        DataError: it is damaged near its start.
    """
    with path.open("rb") as file:
        packing = packing_of(file.read(4))
    with Unpacked(path, packing) as unpacked:
        start = b""
        while len(start) < size and (data := unpacked.read1()):
            start += data
    return packing, start[:size]
