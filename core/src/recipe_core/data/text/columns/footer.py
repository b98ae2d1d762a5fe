"""The row groups that the footer of a Parquet file lists.

pyarrow shows them too, but ends the process where such an entry is damaged, since its bindings do not catch the
exceptions of these calls. The footer is a structure of Thrift's compact protocol; the numbers of its fields are in
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ALL_ROWS, _ROW_GROUPS = 3, 4  # of FileMetaData
_COLUMNS, _NUM_ROWS = 1, 3  # of RowGroup
_FILE_PATH, _META_DATA = 1, 3  # of ColumnChunk
_DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET = 9, 11  # of ColumnMetaData
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = 1, 2, 3, 7, 8, 9, 10, 11, 12, 13
_INTEGERS = (4, 5, 6)


@dataclass(frozen=True)
class RowGroup:
    """An entry of the footer."""

    start: int
    """Byte of the file at which its first page is; 0 if no column says so."""
    rows: int
    elsewhere: str
    """The file that holds its columns; empty for the file itself."""


def row_groups(footer: bytes) -> list[RowGroup]:
    """Read the row groups.

    Raises:
        ValueError, LookupError, TypeError, AttributeError, RecursionError: the footer is damaged.
    """
    facts = _Compact(footer).structure(last=_ROW_GROUPS)
    groups = [_row_group(group) for group in facts.get(_ROW_GROUPS, [])]
    if any(group.rows < 0 for group in groups) or sum(group.rows for group in groups) != facts[_ALL_ROWS]:
        raise ValueError(f"its row groups do not have the {facts[_ALL_ROWS]:,} rows that the footer counts")
    return groups


def _row_group(group: dict[int, Any]) -> RowGroup:
    starts, elsewhere = [], ""
    for column in group[_COLUMNS]:
        facts = column.get(_META_DATA, {})
        starts += [facts[number] for number in (_DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET) if facts.get(number, 0) > 0]
        elsewhere = elsewhere or column.get(_FILE_PATH, b"").decode(errors="replace")
    return RowGroup(min(starts, default=0), group[_NUM_ROWS], elsewhere)


class _Compact:
    """Values of Thrift's compact protocol; a structure is a dictionary by the numbers of its fields."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def structure(self, last: int | None = None) -> dict[int, Any]:
        """Read a structure, or its fields up to ``last``."""
        fields: dict[int, Any] = {}
        number = 0
        while number != last and (head := self._byte()):
            step, kind = head >> 4, head & 15
            number = number + step if step else self._integer()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.structure()
        if kind in (_LIST, _SET):
            head = self._byte()
            size = head >> 4
            return [self._value(head & 15) for _ in range(self._varint() if size == 15 else size)]
        if kind == _MAP:
            size = self._varint()
            kinds = self._byte() if size else 0
            return [(self._value(kinds >> 4), self._value(kinds & 15)) for _ in range(size)]
        sizes = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8, _UUID: 16}
        if kind not in sizes:
            raise ValueError(f"the footer has a field of the unknown kind {kind}")
        return self._bytes(sizes[kind])

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("the footer has a field that is longer than the footer")
        self._at += size
        return self._data[self._at - size : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
