"""Archives of ``torch.save``: uncompressed ZIP files. Their check sums are compared while they are read.

PyTorch's own reader compares none of them. No torch here.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from recipe_core.errors import CheckpointError

_HEADER = struct.Struct("<4s22xHH")
"""A local header of ZIP: its signature, and at byte 26 the lengths of its name and of its extra field."""
_SIGNATURE = b"PK\x03\x04"
_UTF8 = 0x800
"""The flag of a name in UTF-8."""
_STORAGE = re.compile(r".*/data/\d+")
"""Records of tensors, which are read when a tensor is."""
_PLACE = re.compile(r"(dp_rank|tp_rank|pp_rank|mp_rank|tensor)_(\d+)(?:_(\d{3})\b)?")
"""The rank or the tensor number in a file's path."""
_WRITTEN_AS = ".written_as"
"""A record of ours: folder and name under which a rank's file was written. torch.save has the name as the archive's."""
_MOST_UNPACKED = 64 << 20
"""Bytes that compressed records unpack to at most, beside twice what they have: weights hardly compress."""
_STEP = 1 << 20
"""Bytes that are read at once: they are in the processor's cache when their check sum is taken."""


@dataclass(eq=False)
class Record:
    """One record of an archive. On the first use all of it is read and its check sum compared."""

    path: Path
    name: str
    begin: int
    """Its first byte in the file."""
    size: int
    crc: int | None
    """CRC-32; None where the archive was written without check sums."""
    _checked: bool = False

    def read(self, start: int, count: int) -> bytearray:
        """``count`` bytes from ``start`` on; the rest is not kept in memory.

        Raises:
            CheckpointError: the file cannot be read, ends before, or does not hold what was written.
        """
        if self._checked or self.crc is None:
            return read_bytes(self.path, self.begin + start, count)
        data = bytearray(count)
        if self._crc_while_reading(start, memoryview(data)) != self.crc:
            raise CheckpointError(f"{self.path}: damaged, {_differs(self.name)}; get the file again")
        self._checked = True
        return data

    def _crc_while_reading(self, start: int, wanted: memoryview) -> int:
        """Read the record from end to end; its bytes from ``start`` on go into ``wanted``."""
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


def records(path: Path, begin: int = 0, length: int | None = None) -> dict[int, Record]:
    """The records of tensors, by their first byte; what else is in the archive is read and compared at once.

    Args:
        path: a file.
        begin: where the archive begins in it; the keys count from there.
        length: of the archive; None: to the end of the file.

    Raises:
        CheckpointError: a check sum differs, or the archive is of a machine of the other byte order.
        zipfile.BadZipFile: it is no archive, or contradicts itself.
    """
    found = {}
    with _reading(path) as whole:
        file = cast("BinaryIO", FileSlice(whole, begin, length)) if length is not None else whole
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            _require_packed_moderately(path, infos)
            summed = any(info.CRC for info in infos if info.file_size)
            for info in infos:
                at = _first_byte(file, info)
                stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
                record = Record(path, info.filename, begin + at, info.file_size, info.CRC if summed else None)
                if stored and _STORAGE.fullmatch(info.filename):
                    found[at] = record
                elif not _STORAGE.fullmatch(info.filename):
                    _require_ours(record, record.read(0, record.size) if stored else archive.read(info))
    if length is None and infos:
        _require_place(path, infos[0].filename.split("/")[0])
    return found


def _require_packed_moderately(path: Path, infos: Iterable[zipfile.ZipInfo]) -> None:
    """Refuse an archive whose compressed records would fill the memory: a megabyte of zeros packs into a kilobyte."""
    packed = [info for info in infos if info.compress_type != zipfile.ZIP_STORED]
    unpacked = sum(info.file_size for info in packed)
    if unpacked > _MOST_UNPACKED + 2 * sum(info.compress_size for info in packed):
        raise CheckpointError(
            f"{path}: refused, its {len(packed)} compressed records would unpack to {unpacked / 1e6:,.0f} MB, which no "
            "weights do; get it as torch.save writes it, uncompressed"
        )


def written_as(path: Path) -> dict[str, bytes]:
    """The record, by its name, that tells a rank's file from another's; none for files that have no rank."""
    folder = path.absolute().parent.name
    name = path.name if folder.startswith(".") else f"{folder}/{path.name}"  # one that is hidden is still to be renamed
    return {_WRITTEN_AS: name.encode()} if _PLACE.search(name) else {}


def _require_ours(record: Record, data: bytes | bytearray) -> None:
    """Compare what the archive says of itself with where it is, and where it is read."""
    if record.name.endswith("/byteorder") and data.decode() != sys.byteorder:
        raise CheckpointError(f"{record.path}: it was written by a machine of the other byte order")
    if record.name.endswith(f"/{_WRITTEN_AS}"):
        _require_place(record.path, data.decode())


def _require_place(path: Path, said: str) -> None:
    """A file is of the rank, or the tensor, that its name says: those of others have the same names and shapes."""
    wrote = _PLACE.findall(said)
    found = _PLACE.findall("/".join(path.absolute().parts[-1 - said.count("/") :]))
    if wrote and found and wrote != found:
        raise CheckpointError(
            f"{path}: it was written as {said}, so that files were exchanged or renamed; give each its own name again"
        )


def require_sound(file: BinaryIO, path: Path) -> None:
    """Compare every check sum of an archive, where it has some. ``path`` is for the message.

    Raises:
        CheckpointError: one differs.
    """
    with zipfile.ZipFile(file) as archive:
        bad = archive.testzip() if _has_check_sums(archive) else None
    if bad is not None:
        raise CheckpointError(f"{path}: damaged, {_differs(bad)}; get the file again")


def damage(path: Path) -> list[str]:
    """The records of a file whose bytes are not those that were written, by the archive's own check sums.

    None for a regular file that is no archive.
    """
    if not path.is_file():  # a device has no end
        return [f"{path.name} is no regular file"]
    try:
        if not zipfile.is_zipfile(path):
            return []
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip() if _has_check_sums(archive) else None
    except Exception as error:  # damage of names, methods and offsets has as many types in zipfile and zlib
        return [f"{path.name} cannot be read as an archive ({type(error).__name__}: {error})"]
    return [f"{path.name}: {_differs(bad)}"] if bad else []


def has_check_sums(path: Path) -> bool:
    """False for files that are no archives, and for archives that were written without check sums."""
    try:
        with _reading(path) as file, zipfile.ZipFile(file) as archive:
            return _has_check_sums(archive)
    except Exception:  # as above: whoever reads it says what is wrong
        return False


def _has_check_sums(archive: zipfile.ZipFile) -> bool:
    """``torch.serialization.set_crc32_options(False)`` writes zeros in the place of all."""
    return any(info.CRC for info in archive.infolist() if info.file_size)


def _first_byte(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """The first byte of a record, by its local header, whose name must be that of the directory."""
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
    """Require that ``path`` is a file: a pipe may never end, and a device has neither size nor end.

    Raises:
        CheckpointError: it is something else, or cannot be looked at.
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
    """A part of a file.

    Raises:
        CheckpointError: it cannot be read, or ends before.
    """
    data = bytearray(count)
    done = 0
    with _reading(path) as file:
        file.seek(begin)
        while done < count and (got := cast("io.FileIO", file).readinto(memoryview(data)[done:])):
            done += got
    if done < count:
        raise CheckpointError(_cut_short(path, count - done))
    return data


class FileSlice(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, begin: int, length: int) -> None:
        self._file, self._begin, self._length, self._at = file, begin, length, 0

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The place in the part."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the part."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, buffer: object) -> int:
        """Read to the end of the part at most."""
        self._file.seek(self._begin + self._at)
        view = memoryview(cast("bytearray", buffer))
        data = self._file.read(min(len(view), max(0, self._length - self._at)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
