"""Read an object as a file: from anywhere, in blocks that grow, and ahead of a reader that goes through it."""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from recipe_core.files.objects.address import ObjectPath, ObjectStat
from recipe_core.files.objects.failures import ObjectMissingError

_FIRST, _MOST = 64 << 10, 8 << 20
"""Bytes of the first request after a jump, and the most; each one that follows the last is twice as long."""


@dataclass(frozen=True, order=True)
class ObjectFile:
    """An object with the version that is read: what ``pathlib.Path`` is for a file that is read."""

    path: ObjectPath
    version: ObjectStat

    def __str__(self) -> str:
        """The address."""
        return str(self.path)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.path.name

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self.version.size

    def open(self, mode: str = "rb", buffering: int = 0) -> ObjectReader:
        """Return the object as a binary file that can only be read.

        Raises:
            ValueError: another mode.
        """
        if mode != "rb":
            raise ValueError(f"expected the mode rb, got {mode!r}")
        return ObjectReader(self)

    def is_unchanged(self) -> bool:
        """True if the object still has this version."""
        try:
            return self.path.stat() == self.version
        except ObjectMissingError:
            return False


class ObjectReader(io.RawIOBase):
    """An open object. Reads are complete: they are only shorter at its end. Not for several threads.

    A reader that goes through the object holds at most three blocks of 8 MiB. The bytes are those of one version: if
    the object changes, the next request raises ObjectChangedError.
    """

    def __init__(self, file: ObjectFile) -> None:
        self._file, self._at = file, 0
        self._start, self._block = 0, b""
        self._length = _FIRST
        self._pool: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[bytes]] | None = None

    @property
    def name(self) -> str:
        """The address, as other files have their path."""
        return str(self._file)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Continue at another byte; return its offset."""
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence])
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer``, less at the end of the object; return the number of bytes."""
        view, filled = memoryview(buffer).cast("B"), 0
        while filled < len(view) and (piece := self._piece(len(view) - filled)):
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def close(self) -> None:
        """Forget what was read ahead."""
        self._block, self._next = b"", None
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _piece(self, wanted: int) -> memoryview:
        inside = self._at - self._start
        if not 0 <= inside < len(self._block):
            self._fetch(wanted)
            inside = 0
        piece = memoryview(self._block)[inside : inside + wanted]
        self._at += len(piece)
        return piece

    def _fetch(self, wanted: int) -> None:
        follows = bool(self._block) and self._at == self._start + len(self._block)
        self._length = min(2 * self._length, _MOST) if follows else _FIRST
        ahead, self._next = self._next, None
        if ahead is not None and ahead[0] == self._at:
            block = ahead[1].result()
        else:
            block = self._request(self._at, max(self._length, min(wanted, _MOST)))
        self._start, self._block = self._at, block
        if follows and (after := self._at + len(block)) < self._file.size:
            self._pool = self._pool or ThreadPoolExecutor(1, "object reader")
            self._next = after, self._pool.submit(self._request, after, min(2 * self._length, _MOST))

    def _request(self, start: int, length: int) -> bytes:
        stop = min(start + length, self._file.size)
        return self._file.path.read_range(start, stop, self._file.version.etag) if start < stop else b""
