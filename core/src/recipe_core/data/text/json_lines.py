"""From JSON lines to records: an object per line, with the text under a key.

orjson parses ordinary lines directly from the bytes of the file. All other lines (damaged, blank, too long, with halves
of surrogate pairs, ...) go to the standard library, which reports what is wrong.
"""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from recipe_core.data.text.lines import numbered_lines, refuse, too_long
from recipe_core.data.text.stream import TextStream
from recipe_core.data.text_settings import Counts, Record, TextInput
from recipe_core.errors import DataError

_UTF8_MAX = 4
"""Maximum bytes of a character in UTF-8."""


def json_lines(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    """Yield the records of a file; blank lines are skipped, and blank texts too unless the settings keep them.

    Raises:
        DataError: a line has no text (unless ``on_error=skip``), or it cannot be decoded (with ``errors=strict``).
    """
    texts = _from_bytes if stream.is_utf8 and find_spec("orjson") else _from_text
    for number, text in texts(stream, settings, counts):
        blank = not text or text.isspace()
        counts.empty += blank
        if not blank or settings.keeps_empty:
            yield Record(text, str(stream.source), number, done + stream.consumed)


def _from_text(stream: TextStream, settings: TextInput, counts: Counts) -> Iterator[tuple[int, str]]:
    for number, line in numbered_lines(stream, settings, counts, "line"):
        yield from _parse_line(stream, number, line, settings, counts)


def _from_bytes(stream: TextStream, settings: TextInput, counts: Counts) -> Iterator[tuple[int, str]]:
    longest = _UTF8_MAX * settings.max_document
    for number, (start, line) in enumerate(stream.bytes.lines(longest), 1):
        text = _parse_fast(line, settings.json_key) if len(line) <= settings.max_document else None
        if text is not None:
            yield number, text
            continue
        decoded = "" if len(line) > longest else _decode_line(stream, number, start, line)
        if len(line) > longest or len(decoded.rstrip("\r\n")) > settings.max_document:
            refuse(too_long(stream.source, number, "line", settings), settings, counts)
            continue
        for part in io.StringIO(decoded, newline=None):  # a lone \r ends a line too, as in all text
            yield from _parse_line(stream, number, part, settings, counts)


def _parse_fast(line: bytes, key: str) -> str | None:
    """The text of an ordinary line; None for any other line."""
    import orjson

    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    text = row.get(key) if isinstance(row, dict) else None
    return text if isinstance(text, str) else None


def _decode_line(stream: TextStream, number: int, start: int, line: bytes) -> str:
    """Decode a UTF-8 line that starts at byte ``start`` of the file, without a byte order mark."""
    if start == 0 and line.startswith(codecs.BOM_UTF8):
        start, line = start + len(codecs.BOM_UTF8), line[len(codecs.BOM_UTF8) :]
    if stream.replacing:
        stream.replacing.decoded = start
    try:
        return line.decode("utf-8", stream.errors)
    except UnicodeDecodeError as error:
        raise stream.undecodable(error, start + error.start, number) from error


def _parse_line(
    stream: TextStream, number: int, line: str, settings: TextInput, counts: Counts
) -> Iterator[tuple[int, str]]:
    if line.isspace():
        return
    text, problem = _value(line, settings.json_key)
    if problem:
        if settings.on_error == "stop":
            stream.look_ahead()
        advice = "or set on_error=skip to leave such lines out"
        refuse(f"{stream.source}:{number}: {problem}; {advice}", settings, counts)
        return
    if "\\u" in line and not _encodable(text):
        text = _without_surrogates(text, f"{stream.source}:{number}", settings, counts)
    yield number, text


def _value(line: str, key: str) -> tuple[str, str]:
    try:
        row: Any = json.loads(line)
    except RecursionError:
        return "", "the line is nested too deeply to be read; mend it"
    except ValueError as error:
        what = "is cut off" if not line.endswith("\n") else "is not valid JSON"
        return "", f'the line {what} ({error}); every line must be one whole object, such as {{"{key}": "..."}}'
    if not isinstance(row, dict):
        return "", f"expected an object with the key {key!r}, got {_kind(row)}; fix the line"
    if key not in row:
        has = ", ".join(repr(name) for name in list(row)[:8]) or "no key at all"
        return "", f"the key {key!r} is missing (the line has {has}); name the key of the text by json_key=..."
    value = row[key]
    if not isinstance(value, str):
        return "", f"expected a text under {key!r}, got {_kind(value)}; name another key by json_key=..."
    return value, ""


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    known: dict[type, str] = {list: "a list", dict: "an object", str: "a text"}
    return known.get(type(value), "a number")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _without_surrogates(text: str, where: str, settings: TextInput, counts: Counts) -> str:
    """Replace halves of surrogate pairs by U+FFFD: JSON can escape them, but no tokenizer accepts them."""
    halves = sum("\ud800" <= character <= "\udfff" for character in text)
    if settings.errors == "strict":
        raise DataError(
            f"{where}: the text has {halves} halves of surrogate pairs (\\ud800 to \\udfff), which are no characters; "
            "mend it, or set errors=replace"
        )
    counts.replaced += halves
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
