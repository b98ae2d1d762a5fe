"""Messages of Arrow's IPC formats: where each one is in a file, by their headers alone.

pyarrow reads a stream from its beginning, and takes one that was cut off after a record batch as complete. A part of a
preparation reads some of the record batches, and a truncated file must be an error, so the messages are found here. The
layout is that of https://arrow.apache.org/docs/format/Columnar.html: the file format is the stream format between
two magic words, with a footer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

FILE_MAGIC = b"ARROW1\0\0"
FILE_END = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
"""Kinds of messages: ``MessageHeader`` in Arrow's Message.fbs."""
_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX = 8


@dataclass(frozen=True)
class Message:
    """The place of a message in a file."""

    kind: int
    start: int
    stop: int
    rows: int
    """Of a record batch; 0 for others."""


def is_stream(start: bytes) -> bool:
    """True if a file with these first bytes is an Arrow stream."""
    try:
        return start.startswith(_CONTINUATION) and _header(start[_PREFIX:])[0] == SCHEMA
    except struct.error:
        return False


def messages(file: BinaryIO, size: int) -> Iterator[Message]:
    """Yield the messages of a file of ``size`` bytes, from its beginning to the mark of the stream's end.

    Raises:
        ValueError: the bytes are no message, or others follow the end of the stream.
        struct.error: a header is damaged.
        OSError: the file cannot be read.
    """
    file.seek(0)
    in_file = file.read(len(FILE_MAGIC)) == FILE_MAGIC
    at = len(FILE_MAGIC) if in_file else 0
    while True:
        file.seek(at)
        prefix = file.read(_PREFIX)
        if prefix == STREAM_END:
            break
        length = _read("<i", prefix, len(_CONTINUATION))
        if not prefix.startswith(_CONTINUATION) or not 0 < length <= size - at - _PREFIX:
            raise ValueError(f"there is no message at byte {at:,}")
        kind, body, rows = _header(file.read(length))
        stop = at + _PREFIX + length + body
        if body < 0 or rows < 0 or stop > size:
            raise ValueError(f"the message at byte {at:,} has an impossible size")
        yield Message(kind, at, stop, rows)
        at = stop
    if not in_file and at + _PREFIX != size:
        raise ValueError(f"its stream ends at byte {at + _PREFIX:,}, and other bytes follow")


def _header(metadata: bytes) -> tuple[int, int, int]:
    """Kind, bytes of the body, and rows of a message: fields of its flatbuffer.

    A table holds the distance to its vtable, which holds the distance to each field, or 0 for a default.
    """
    message = _read("<I", metadata, 0)
    kind = _field("<B", metadata, message, 1)
    body = _field("<q", metadata, message, 3)
    if kind != BATCH:
        return kind, body, 0
    at = _place(metadata, message, 2)
    return kind, body, _field("<q", metadata, at + _read("<I", metadata, at), 0)


def _field(form: str, data: bytes, table: int, number: int) -> int:
    at = _place(data, table, number)
    return _read(form, data, at) if at else 0


def _place(data: bytes, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is not there."""
    vtable = table - _read("<i", data, table)
    slot = 4 + 2 * number
    distance = _read("<H", data, vtable + slot) if slot < _read("<H", data, vtable) else 0
    return table + distance if distance else 0


def _read(form: str, data: bytes, at: int) -> int:
    if at < 0:
        raise struct.error(f"offset {at}")  # which struct would count from the end
    value: int = struct.unpack_from(form, data, at)[0]
    return value
