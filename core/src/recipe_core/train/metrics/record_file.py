"""A file that grows record by record. A failure to write it is reported and never raised."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

LIMIT = 10_000
"""Records, at most, that wait in memory until they can be written."""


class RecordFile:
    """Appends records to a file: each of them whole, or not at all.

    Where a write fails (a full disk, a folder that is gone), what it left of a record is cut off, and the record waits
    in memory: every further one tries again. The first failure is reported in one line, what is lost in the end in
    another. Writes are unbuffered and made by the caller's own thread: no queue can fill up, and closing waits for
    nothing.

    Args:
        path: opened with the first record; what it holds already stays.
        kind: names the records to the user ("rows").
        warn: takes a message for the user.
        header: what a new file begins with.
    """

    def __init__(self, path: Path, kind: str, warn: Callable[[str], None], header: bytes = b"") -> None:
        self.path, self._kind, self._warn, self._header = path, kind, warn, header
        self._file: FileIO | None = None
        self._known: os.stat_result | None = None  # the file that was opened last
        self._cut: int | None = None  # where a half-written record begins
        self._last: int | None = None  # step of the last record in the file
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._dropped: list[int] = []  # steps of records that did not even fit into memory: first and last
        self._dropped_count = 0
        self._reported = False

    def append(self, step: int, record: bytes) -> None:
        """Write the record of ``step``, after those that could not be written before."""
        self._waiting.append((step, record))
        try:
            self._drain()
        except OSError as error:
            self._fail(error)
            if len(self._waiting) > LIMIT:
                self._drop(self._waiting.popleft()[0])

    def close(self) -> None:
        """Try once more to write what waits, and name what is lost."""
        reason = "not written"
        try:
            if self._waiting:
                self._drain()
            if self._file is not None:
                if not self._in_place(self._file):
                    self._removed("gone")
                self._file.close()
        except OSError as error:
            reason = error.strerror or str(error)
            self._let_go()
        for step, _ in self._waiting:
            self._drop(step)
        self._waiting.clear()
        if self._dropped_count:
            steps = f"step {self._dropped[0]:,}"
            if self._dropped_count > 1:
                steps = f"{self._dropped_count:,} steps from {self._dropped[0]:,} to {self._dropped[-1]:,}"
            self._warn(f"{self.path}: the {self._kind} of {steps} are lost ({reason})")

    def _drain(self) -> None:
        file = self._open()
        while self._waiting:
            step, record = self._waiting[0]
            self._write(file, record)
            self._waiting.popleft()
            self._last = step

    def _open(self) -> FileIO:
        """The file, ending with its last whole record; opened again where it failed or is gone."""
        if self._file is not None and not self._in_place(self._file):
            self._let_go()
            self._removed()
        if self._file is None:
            self.path.parent.mkdir(exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            status = os.fstat(self._file.fileno())
            if self._known is not None and not os.path.samestat(self._known, status):
                self._removed()
            self._known = status
            if self._cut is not None and self._cut < status.st_size:
                self._file.truncate(self._cut)
            self._cut = None
        if not os.fstat(self._file.fileno()).st_size:
            self._write(self._file, self._header)
        return self._file

    def _in_place(self, file: FileIO) -> bool:
        """True if ``file`` is still the one of its name: a removed file would take every write, and lose it."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _removed(self, where: str = "not in the file that those after it go to") -> None:
        """The file that was written is not the one that has its name now."""
        self._known = self._cut = None
        if self._last is not None:
            self._warn(
                f"{self.path} was removed or replaced while the run wrote it: the {self._kind} up to step "
                f"{self._last:,} are {where}"
            )

    def _write(self, file: FileIO, record: bytes) -> None:
        end, rest = os.fstat(file.fileno()).st_size, memoryview(record)
        try:
            while rest:
                rest = rest[file.write(rest) :]  # the disk may have room for a part of it
        except OSError:
            self._cut = end
            raise

    def _fail(self, error: OSError) -> None:
        self._let_go()
        if not self._reported:
            self._reported = True
            self._warn(
                f"{self.path}: {self._kind} cannot be written since step {self._waiting[0][0]:,} "
                f"({error.strerror or error}); training goes on, and they are written once that is possible"
            )

    def _let_go(self) -> None:
        """Close the file; whatever is half written goes, now or when it is opened again."""
        file, self._file = self._file, None
        if file is None:
            return
        with suppress(OSError):
            if self._cut is not None:
                file.truncate(self._cut)
                self._cut = None
        with suppress(OSError):
            file.close()

    def _drop(self, step: int) -> None:
        self._dropped_count += 1
        self._dropped = [*self._dropped[:1], step]
