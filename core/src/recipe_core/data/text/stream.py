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
from typing import Any, Protocol

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
        replacing: what replaces and counts bytes that are no text; None: they are an error.

    Raises:
        DataError: on leaving the context; the file cannot be read, or bytes in it are no text.
    """

    def __init__(self, source: Source, encoding: str, replacing: Replacing | None) -> None:
        self.path, self.encoding, self.replacing = source.path, encoding, replacing
        self.errors = replacing.name if replacing else "strict"
        self.bytes = Unpacked(source.path, source.packing)
        if replacing:
            replacing.begin(self)
        self.is_utf8 = codecs.lookup(encoding).name == "utf-8"
        # The byte order mark that some editors write is no text.
        name = "utf-8-sig" if self.is_utf8 else encoding
        self.text = io.TextIOWrapper(self.bytes, encoding=name, errors=self.errors)

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
                offset = self.offset_of(error)
                raise self.undecodable(error, offset, self.line_at(offset)) from error
            if isinstance(error, OSError):
                raise DataError(f"{self.path}: cannot be read ({error.strerror or error})") from error
        finally:
            self.text.close()

    def offset_of(self, error: UnicodeDecodeError) -> int:
        """The byte of the unpacked file that the decoder of :attr:`text` could not take."""
        # It saw the newest bytes and what it had kept of the bytes before.
        return self.bytes.given - len(error.object) + error.start

    def line_at(self, offset: int) -> int:
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
            f"{error.object[error.start : error.end].hex(' ')}); {better_encoding(self.path, offset, self.encoding)}, "
            "or errors=replace"
        )


class Replacing:
    """An error handler of Python's decoders that puts U+FFFD in the place of what is no text, and judges each file.

    Args:
        most: the largest share of a file's bytes that may be replaced, where there are more than a few.

    Raises:
        DataError: while reading; a file has more of them, so that it is written in another encoding.
    """

    FEW = 10
    """Places in a file that are never too many."""
    _JUDGED_EVERY = 1000
    places: int
    """Places of the present file that were replaced."""
    decoded: int | None
    """The byte of it at which the bytes start that are being decoded; None: :attr:`TextStream.text` decodes them."""

    def __init__(self, counts: Counts, most: float) -> None:
        self._counts, self._most = counts, most
        self.name = f"recipe_core.data.text.{next(_numbers)}"
        codecs.register_error(self.name, self)

    def begin(self, stream: TextStream) -> None:
        """Begin with another file."""
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
        """Refuse the present file if too much of what was read so far is no text.

        Raises:
            DataError: it is.
        """
        if self.places > max(self.FEW, self._most * self._stream.bytes.given):
            found = self.found()
            self._stream.look_ahead()
            raise DataError(f"{found}. If it is right, most_replaced=1 puts U+FFFD in the place of each")

    def found(self) -> str:
        """How much of the present file was replaced so far, where it begins, and what to do."""
        stream, first = self._stream, self._first
        return (
            f"{stream.path}:{stream.line_at(first)}: {self.places:,} places in {stream.bytes.given:,} bytes are not "
            f"{stream.encoding}, the first at byte {first:,}; {better_encoding(stream.path, first, stream.encoding)}"
        )


def better_encoding(path: Path, offset: int, encoding: str) -> str:
    """Advice for a file that is not written in ``encoding``, as its byte ``offset`` shows."""
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
    if wrong < sum(not character.isascii() for character in text) / 2:  # damage in a text of this encoding
        return usual
    matches: list[Any] = list(from_bytes(taken))
    if not matches or codecs.lookup(matches[0].encoding).name == codecs.lookup(encoding).name:
        return usual
    best = matches[0].chaos, matches[0].coherence
    equal = [match for match in matches if (match.chaos, match.coherence) == best]
    western = any("cp1252" in match.could_be_from_charset for match in equal)  # the most frequent one
    return f"set encoding={'cp1252' if western else matches[0].encoding}, which seems to fit"


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
