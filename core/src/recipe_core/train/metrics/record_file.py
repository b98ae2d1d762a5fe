"""Append-only files of records. A failure to write is reported and never raised."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

LIMIT = 10_000
"""Most records that wait in memory until they can be written."""


class RecordFile:
    """Appends records to a file, each one whole or not at all.

    If a write fails (a full disk, a removed folder), the partial record is truncated, and the record waits in memory
    until a later append succeeds. The first failure is reported in one line, records that are lost at the end in
    another. Writes are unbuffered and happen in the caller's thread, so that no queue can fill up and closing does not
    block.

    Args:
        path: opened with the first record, to append.
        kind: name of the records in messages ("rows").
        warn: called with messages for the user.
        header: start of a new file.
    """

    def __init__(self, path: Path, kind: str, warn: Callable[[str], None], header: bytes = b"") -> None:
        self.path, self._kind, self._warn, self._header = path, kind, warn, header
        self._file: FileIO | None = None
        self._status: os.stat_result | None = None  # of the file opened last
        self._cut: int | None = None  # where a half-written record begins
        self._last: int | None = None  # step of the last record in the file
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._dropped: list[int] = []  # steps of the first and the last record dropped from memory
        self._dropped_count = 0
        self._reported = False

    def append(self, step: int, record: bytes) -> None:
        """Write the record of ``step``, after those that still wait."""
        self._waiting.append((step, record))
        try:
            self._drain()
        except OSError as error:
            self._fail(error)
            if len(self._waiting) > LIMIT:
                self._drop(self._waiting.popleft()[0])

    def close(self) -> None:
        """Try once more to write the records that wait, and report those that are lost."""
        reason = "not written"
        try:
            if self._waiting:
                self._drain()
            if self._file is not None:
                if not self._is_current(self._file):
                    self._report_removal("gone")
                self._file.close()
        except OSError as error:
            reason = error.strerror or str(error)
            self._close_file()
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
        # opened again after a failure or a removal, and truncated to its last whole record
        if self._file is not None and not self._is_current(self._file):
            self._close_file()
            self._report_removal()
        if self._file is None:
            self.path.parent.mkdir(exist_ok=True)
            self._file = self.path.open("ab", buffering=0)
            status = os.fstat(self._file.fileno())
            if self._status is not None and not os.path.samestat(self._status, status):
                self._report_removal()
            self._status = status
            if self._cut is not None and self._cut < status.st_size:
                self._file.truncate(self._cut)
            self._cut = None
        if not os.fstat(self._file.fileno()).st_size:
            self._write(self._file, self._header)
        return self._file

    def _is_current(self, file: FileIO) -> bool:
        # Writes to a removed file would succeed, and be lost.
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False

    def _report_removal(self, where: str = "not in the file that those after it go to") -> None:
        self._status = self._cut = None
        if self._last is not None:
            self._warn(
                f"{self.path} was removed or replaced while the run wrote it: the {self._kind} up to step "
                f"{self._last:,} are {where}"
            )

    def _write(self, file: FileIO, record: bytes) -> None:
        end, rest = os.fstat(file.fileno()).st_size, memoryview(record)
        try:
            while rest:
                rest = rest[file.write(rest) :]  # a nearly full disk may take only a part
        except OSError:
            self._cut = end
            raise

    def _fail(self, error: OSError) -> None:
        self._close_file()
        if not self._reported:
            self._reported = True
            self._warn(
                f"{self.path}: {self._kind} cannot be written since step {self._waiting[0][0]:,} "
                f"({error.strerror or error}); training goes on, and they are written once that is possible"
            )

    def _close_file(self) -> None:
        # A partial record is truncated now, or when the file is opened again.
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
