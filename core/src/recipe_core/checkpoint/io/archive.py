"""Archives of ``torch.save``: uncompressed ZIP files. Checksums are verified while they are read.

PyTorch's own reader verifies none of them. No torch here.
"""

from __future__ import annotations

import io
import mmap
import re
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from recipe_core.errors import CheckpointError

Buffer = bytearray | mmap.mmap
"""Writable bytes."""
_HEADER = struct.Struct("<4s22xHH")
"""A local ZIP header: signature, and from byte 26 the lengths of name and extra field."""
_SIGNATURE = b"PK\x03\x04"
_UTF8 = 0x800
"""Flag of a UTF-8 name."""
_STORAGE = re.compile(r".*/data/\d+")
"""Records of tensors, which are read when the tensor is read."""
_PLACE = re.compile(r"(dp_rank|tp_rank|pp_rank|mp_rank|tensor)_(\d+)(?:_(\d{3})\b)?")
"""Rank or tensor number in a file's path."""
_WRITTEN_AS = ".written_as"
"""Additional record: folder and name under which a rank's file was written. torch.save keeps the name alone."""
_MOST_UNPACKED = 64 << 20
"""Largest unpacked size of compressed records, in addition to twice their packed size: weights hardly compress."""
_STEP = 1 << 20
"""Bytes per read: they are still in the processor's cache when the checksum is computed."""
_HUGE = 2 << 20
"""Size of a huge page of most processors."""


@dataclass(eq=False)
class ArchiveRecord:
    """One record of an archive. The first read verifies the checksum of the whole record."""

    path: Path
    name: str
    begin: int
    """Offset of its first byte in the file."""
    size: int
    crc: int | None
    """CRC-32; None if the archive has no checksums."""
    _checked: bool = False

    def read(self, start: int, count: int) -> Buffer:
        """Return ``count`` bytes from ``start``; the rest is not kept in memory.

        Raises:
            CheckpointError: the file cannot be read, ends early, or has another checksum.
        """
        if self._checked or self.crc is None:
            return read_values(self.path, self.begin + start, count)
        data = _allocate(count)
        if self._crc_while_reading(start, memoryview(data)) != self.crc:
            raise CheckpointError(f"{self.path}: damaged, {_differs(self.name)}; get the file again")
        self._checked = True
        return data

    def _crc_while_reading(self, start: int, wanted: memoryview) -> int:
        """Read the whole record and return its CRC-32; fill ``wanted`` with its bytes from ``start``."""
        end = start + len(wanted)
        spare = memoryview(bytearray(min(_STEP, self.size - len(wanted))))
        crc = at = 0
        with _reading(self.path) as file:
            file.seek(self.begin)
            while at < self.size:
                into, stop = (spare, start) if at < start else (wanted[at - start :], end)
                if at >= end:
                    into, stop = spare, self.size
                piece = into[: min(_STEP, stop - at)]
                got = cast("io.FileIO", file).readinto(piece)
                if not got:
                    raise CheckpointError(_cut_short(self.path, self.size - at))
                crc = zlib.crc32(piece[:got], crc)
                at += got
        return crc


def records(path: Path, begin: int = 0, length: int | None = None) -> dict[int, ArchiveRecord]:
    """Return the records of tensors by their first byte; other records are read and verified immediately.

    Args:
        path: a file.
        begin: offset of the archive in the file; keys are relative to it.
        length: length of the archive; None: to the end of the file.

    Raises:
        CheckpointError: a checksum differs, or the archive has the other byte order.
        zipfile.BadZipFile: it is not an archive, or is inconsistent.
    """
    tensors = {}
    with _reading(path) as whole:
        file = cast("BinaryIO", FileSlice(whole, begin, length)) if length is not None else whole
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            _require_packed_moderately(path, infos)
            has_crc = any(info.CRC for info in infos if info.file_size)
            for info in infos:
                at = _first_byte(file, info)
                stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
                record = ArchiveRecord(path, info.filename, begin + at, info.file_size, info.CRC if has_crc else None)
                if stored and _STORAGE.fullmatch(info.filename):
                    tensors[at] = record
                elif not _STORAGE.fullmatch(info.filename):
                    _require_origin(record, record.read(0, record.size) if stored else archive.read(info))
    if length is None and infos:
        _require_place(path, infos[0].filename.split("/")[0])
    return tensors


def _require_packed_moderately(path: Path, infos: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse decompression bombs: a megabyte of zeros packs into a kilobyte."""
    packed = [info for info in infos if info.compress_type != zipfile.ZIP_STORED]
    unpacked = sum(info.file_size for info in packed)
    if unpacked > _MOST_UNPACKED + 2 * sum(info.compress_size for info in packed):
        raise CheckpointError(
            f"{path}: refused, its {len(packed)} compressed records would unpack to {unpacked / 1e6:,.0f} MB, which no "
            "weights do; get it as torch.save writes it, uncompressed"
        )


def written_as(path: Path) -> dict[str, bytes]:
    """Return the additional record that identifies a rank's file, by its name; empty for files without a rank."""
    folder = path.absolute().parent.name
    name = path.name if folder.startswith(".") else f"{folder}/{path.name}"  # a hidden folder is renamed later
    return {_WRITTEN_AS: name.encode()} if _PLACE.search(name) else {}


def _require_origin(record: ArchiveRecord, data: bytes | Buffer) -> None:
    if record.name.endswith("/byteorder") and bytes(data).decode() != sys.byteorder:
        raise CheckpointError(f"{record.path}: it was written by a machine of the other byte order")
    if record.name.endswith(f"/{_WRITTEN_AS}"):
        _require_place(record.path, bytes(data).decode())


def _require_place(path: Path, origin: str) -> None:
    """Require that the file is of the rank or tensor in its name: other ranks have the same names and shapes."""
    written = _PLACE.findall(origin)
    present = _PLACE.findall("/".join(path.absolute().parts[-1 - origin.count("/") :]))
    if written and present and written != present:
        raise CheckpointError(
            f"{path}: it was written as {origin}, so that files were exchanged or renamed; give each its own name again"
        )


def verify_checksums(file: BinaryIO, path: Path) -> None:
    """Verify all checksums of an archive, if it has any. ``path`` is for the message.

    Raises:
        CheckpointError: a checksum differs.
    """
    with zipfile.ZipFile(file) as archive:
        bad = archive.testzip() if _has_checksums(archive) else None
    if bad is not None:
        raise CheckpointError(f"{path}: damaged, {_differs(bad)}; get the file again")


def damage(path: Path) -> list[str]:
    """Return messages on damaged records of a file, by the archive's checksums.

    Empty for a regular file that is not an archive.
    """
    if not path.is_file():  # a device has no end
        return [f"{path.name} is no regular file"]
    try:
        if not zipfile.is_zipfile(path):
            return []
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip() if _has_checksums(archive) else None
    except Exception as error:  # damage raises many types in zipfile and zlib
        return [f"{path.name} cannot be read as an archive ({type(error).__name__}: {error})"]
    return [f"{path.name}: {_differs(bad)}"] if bad else []


def has_checksums(path: Path) -> bool:
    """True if ``path`` is an archive with checksums."""
    try:
        with _reading(path) as file, zipfile.ZipFile(file) as archive:
            return _has_checksums(archive)
    except Exception:  # as above: the reader reports what is wrong
        return False


def _has_checksums(archive: zipfile.ZipFile) -> bool:
    # torch.serialization.set_crc32_options(False) writes zeros instead.
    return any(info.CRC for info in archive.infolist() if info.file_size)


def _first_byte(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Offset of a record's data, from its local header, which must have the name in the directory."""
    file.seek(info.header_offset)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise zipfile.BadZipFile(f"the header of {info.filename} is missing")
    signature, name, extra = _HEADER.unpack(header)
    text = file.read(name).decode("utf-8" if info.flag_bits & _UTF8 else "cp437", "replace")
    if signature != _SIGNATURE or text != info.orig_filename:
        raise zipfile.BadZipFile(f"the header of {info.filename} is not where the directory says")
    return info.header_offset + _HEADER.size + int(name) + int(extra)


def _differs(name: str) -> str:
    return f"{name} does not hold the bytes that were written (its check sum differs)"


def _cut_short(path: Path, missing: int) -> str:
    return f"{path}: it ends {missing:,} bytes too early; it is cut short"


def require_regular(path: Path) -> None:
    """Require a regular file: a pipe may never end, and a device has neither size nor end.

    Raises:
        CheckpointError: it is not a regular file, or cannot be accessed.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path}: is no regular file, so it holds no checkpoint")


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        require_regular(path)
        with path.open("rb", buffering=0) as file:
            yield cast("BinaryIO", file)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_bytes(path: Path, begin: int, count: int) -> bytearray:
    """Read ``count`` bytes of a file from ``begin``.

    Raises:
        CheckpointError: it cannot be read, or ends early.
    """
    data = bytearray(count)
    _fill(memoryview(data), path, begin)
    return data


def read_values(path: Path, begin: int, count: int) -> Buffer:
    """:func:`read_bytes` for the values of tensors."""
    data = _allocate(count)
    _fill(memoryview(data), path, begin)
    return data


def _fill(data: memoryview, path: Path, begin: int) -> None:
    done = 0
    with _reading(path) as file:
        file.seek(begin)
        while done < len(data) and (got := cast("io.FileIO", file).readinto(data[done:])):
            done += got
    if done < len(data):
        raise CheckpointError(_cut_short(path, len(data) - done))


def _allocate(count: int) -> Buffer:
    """Allocate ``count`` bytes, in huge pages if there are many and Linux has such pages.

    Large allocations get new pages each time, and 4-KiB pages take longer than the bytes that are read into them.
    """
    if count < _HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return bytearray(count)
    data = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        data.madvise(mmap.MADV_HUGEPAGE)
    return data


class FileSlice(io.RawIOBase):
    """A part of a file as a separate read-only file."""

    def __init__(self, file: BinaryIO, begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in the part."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position in the part."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, buffer: object) -> int:
        """Read into ``buffer``, at most to the end of the part."""
        self._file.seek(self._begin + self._at)
        view = memoryview(cast("bytearray", buffer))
        data = self._file.read(min(len(view), max(0, self._length - self._at)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
