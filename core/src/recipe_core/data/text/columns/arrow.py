"""Arrow's file format (Feather 2) and stream format: a column, one record batch after another."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from recipe_core.data.text.columns.messages import BATCH, FILE_END, FILE_MAGIC, STREAM_END, Message, messages
from recipe_core.data.text.columns.table import Group, cut_off, damaged, decoding
from recipe_core.files.objects.reading import ObjectFile


class ArrowTable:
    """An open Arrow file; see :class:`recipe_core.data.text.columns.table.Table`.

    Both formats are read as streams: the file format has one inside.

    Raises:
        DataError: it is truncated or damaged.
    """

    def __init__(self, path: Path | ObjectFile, file: BinaryIO, size: int) -> None:
        import pyarrow

        self._path, self._file, self._size = path, file, size
        file.seek(0)
        self._is_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
        end = FILE_END if self._is_file else STREAM_END
        file.seek(max(size - len(end), 0))
        # A stream may end without the mark of its end. But then it looks like one that was cut off.
        if file.read() != end or size < len(FILE_MAGIC) + len(end):
            raise cut_off(
                path, "arrow", "the magic word of its footer" if self._is_file else "the mark of the end of a stream"
            )
        with self._decoding():
            if self._is_file:
                with pyarrow.ipc.open_file(file) as reader:
                    self.schema = reader.schema
                    self._listed = reader.num_record_batches
            else:
                self.schema = pyarrow.ipc.open_stream(_Ranges(file, [(0, size)])).schema

    def _decoding(self) -> Any:
        return decoding(self._path, "arrow")

    @cached_property
    def _messages(self) -> list[Message]:
        with self._decoding():
            found = list(messages(self._file, self._size))
        batches = sum(message.kind == BATCH for message in found)
        if self._is_file and batches != self._listed:
            reason = f"the footer lists {self._listed:,} record batches, and {batches:,} are there"
            raise damaged(self._path, "arrow", reason)
        return found

    def groups(self) -> list[Group]:
        """Return the record batches."""
        found: list[Group] = []
        before = 0
        for number, message in enumerate(self._messages):
            if message.kind == BATCH:  # also one without rows, which may be a damaged one
                found.append(Group(number, message.start if found else 0, before, message.rows))
                before += message.rows
        return found

    def batches(self, groups: list[Group], column: str) -> Iterator[tuple[Group, Any]]:
        """Yield the column of each record batch."""
        import pyarrow

        if not groups:
            return
        wanted = {group.number for group in groups}
        # The schema, and each dictionary up to the last batch, since later ones can extend or replace it.
        needed = [
            message
            for number, message in enumerate(self._messages[: max(wanted) + 1])
            if number in wanted or message.kind != BATCH
        ]
        with self._decoding():
            options = pyarrow.ipc.IpcReadOptions(included_fields=[self.schema.get_field_index(column)])
            stream = _Ranges(self._file, [(message.start, message.stop) for message in needed])
            reader = pyarrow.ipc.open_stream(stream, options=options)
        for group in groups:
            with self._decoding():
                array = reader.read_next_batch().column(column)
            yield group, array


class _Ranges(io.RawIOBase):
    """Ranges of a file as one stream; pyarrow's reads never cross their bounds, which are those of messages."""

    def __init__(self, file: BinaryIO, ranges: Sequence[tuple[int, int]]) -> None:
        self._file, self._ranges = file, iter(ranges)
        self._at = self._stop = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return the next ``size`` bytes, or what is left of a range."""
        while self._at == self._stop:
            following = next(self._ranges, None)
            if following is None:
                return b""
            self._at, self._stop = following
        self._file.seek(self._at)
        data = self._file.read(self._stop - self._at if size < 0 else min(size, self._stop - self._at))
        self._at += len(data)
        return data
