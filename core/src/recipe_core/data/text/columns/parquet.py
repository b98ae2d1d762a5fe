"""Parquet files: a column, one row group after another."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from recipe_core.data.text.columns.footer import row_groups
from recipe_core.data.text.columns.table import ENCRYPTED, ENCRYPTED_MAGIC, PARQUET_MAGIC, Group, cut_off, decoding
from recipe_core.errors import DataError
from recipe_core.files.objects.reading import ObjectFile

_ROWS = 128
"""Rows that are decoded at once: enough that the calls cost little, few enough for texts of megabytes."""
_TAIL = 8
"""Bytes after the footer: its length, and the magic word."""
_BUFFER = 1 << 20
"""Bytes of a column that are read at once; otherwise the column of a row group is read as a whole."""


class ParquetTable:
    """An open Parquet file; see :class:`recipe_core.data.text.columns.table.Table`.

    Raises:
        DataError: it is encrypted, truncated or damaged, or only describes other files.
    """

    def __init__(self, path: Path | ObjectFile, file: BinaryIO, size: int) -> None:
        import pyarrow.parquet

        file.seek(max(size - len(PARQUET_MAGIC), 0))
        end = file.read()
        if end == ENCRYPTED_MAGIC:
            raise DataError(f"{path}: {ENCRYPTED}")
        if end != PARQUET_MAGIC or size < len(PARQUET_MAGIC) + _TAIL:
            raise cut_off(path, "parquet", f"{PARQUET_MAGIC.decode()!r}")
        self._path, self._size, self._bytes = path, size, file
        with self._decoding():
            self._file = pyarrow.parquet.ParquetFile(
                file, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True
            )
            self.schema = self._file.schema_arrow

    def _decoding(self) -> Any:
        return decoding(self._path, "parquet")

    def groups(self) -> list[Group]:
        """Return the row groups."""
        with self._decoding():
            listed = row_groups(self._footer())
        for group in listed:
            if group.elsewhere:
                where = f"{self._path}: holds no rows but the place of those in {group.elsewhere!r}"
                raise DataError(f"{where}; name the files with the rows alone")
        found: list[Group] = []
        before = 0
        for number, group in enumerate(listed):
            if group.rows:
                found.append(Group(number, group.start if found else 0, before, group.rows))
                before += group.rows
        if not all(one.start < two.start < self._size for one, two in pairwise(found)):
            # no writer is known that orders them otherwise; such a file is not cut
            return [Group(group.number, 0, group.before, group.rows) for group in found]
        return found

    def _footer(self) -> bytes:
        self._bytes.seek(self._size - _TAIL)
        length = int.from_bytes(self._bytes.read(4), "little")
        self._bytes.seek(max(self._size - _TAIL - length, 0))
        return self._bytes.read(length)

    def batches(self, groups: list[Group], column: str) -> Iterator[tuple[Group, Any]]:
        """Yield the column in pieces of some rows."""
        for group in groups:
            with self._decoding():
                batches = self._file.iter_batches(_ROWS, [group.number], [column], use_threads=False)
            while True:
                with self._decoding():
                    if (batch := next(batches, None)) is None:
                        break
                    array = batch.column(column)
                yield group, array
