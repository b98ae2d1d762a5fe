"""A file for HDF5 that hides failed writes from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class Sink:
    """File that keeps the first OSError for :meth:`check` and ignores all calls after it; a context manager.

    HDF5 cannot abandon a file: after a failed write it retries whenever one of its objects is freed, and h5py prints a
    traceback each time. The methods are those that h5py needs of a Python file.
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
        """Raise the first OSError, if there was one."""
        if self._error is not None:
            raise self._error

    def _try(self, work: Callable[[], T], default: T) -> T:
        if self._error is None:
            try:
                return work()
            except OSError as error:
                self._error = error
        return default

    def write(self, data: memoryview) -> int:
        """Write all of ``data``."""

        def work() -> None:
            done = 0
            while done < len(data):
                done += self._file.write(data[done:]) or 0

        self._try(work, None)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes; zeros after an error."""
        return self._try(lambda: self._file.read(size), bytes(max(0, size))) or b""

    def readinto(self, buffer: memoryview) -> int:
        """Read into ``buffer``."""
        return self._try(lambda: self._file.readinto(buffer), len(buffer)) or 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        return self._try(lambda: self._file.seek(offset, whence), offset)

    def tell(self) -> int:
        """Return the position."""
        return self._try(self._file.tell, 0)

    def truncate(self, size: int) -> int:
        """Set the size of the file."""
        return self._try(lambda: self._file.truncate(size), size)

    def flush(self) -> None:
        """Do nothing: the file is unbuffered."""
