"""A file that HDF5 writes into without ever being told that a write failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Sink:
    """Keeps the first error of the disk for :meth:`check`, and does nothing from then on; a context manager.

    HDF5 has no way to give a file up: after a failed write it tries again whenever one of its objects goes, and h5py
    prints a traceback each time. The methods are those that h5py asks of a Python file.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._error: OSError | None = None

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def check(self) -> None:
        """Raise the OSError of the first write that failed, if one did."""
        if self._error is not None:
            raise self._error

    def _try(self, work: Callable[[], T], otherwise: T) -> T:
        if self._error is None:
            try:
                return work()
            except OSError as error:
                self._error = error
        return otherwise

    def write(self, data: memoryview) -> int:
        """Write all of ``data``."""

        def work() -> None:
            done = 0
            while done < len(data):
                done += self._file.write(data[done:]) or 0

        self._try(work, None)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Read what was written."""
        return self._try(lambda: self._file.read(size), bytes(max(0, size))) or b""

    def readinto(self, buffer: memoryview) -> int:
        """The same, into memory that is there."""
        return self._try(lambda: self._file.readinto(buffer), len(buffer)) or 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._try(lambda: self._file.seek(offset, whence), offset)

    def tell(self) -> int:
        """The place."""
        return self._try(self._file.tell, 0)

    def truncate(self, size: int) -> int:
        """Cut or lengthen the file."""
        return self._try(lambda: self._file.truncate(size), size)

    def flush(self) -> None:
        """Nothing is buffered."""
