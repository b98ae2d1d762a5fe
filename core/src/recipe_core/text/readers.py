"""From files to records, one at a time: the cheap stage, which one process can do for many workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from recipe_core.errors import DataError
from recipe_core.text.dump import pages
from recipe_core.text.inputs import find
from recipe_core.text.stream import TextStream, counting
from recipe_core.text_settings import Counts, Record, TextInput


def records(settings: TextInput, counts: Counts | None = None) -> Iterator[Record]:
    """Yield the documents of all inputs, in order, as they are written; ``clean`` makes text of them.

    The memory is bounded: a file is never held as a whole, unless it is one document.

    Args:
        counts: is added to while documents are yielded.

    Raises:
        DataError: an input is missing, damaged, cut off or not what it says; a document cannot be used; or there is
            no document in any of them.
    """
    counts = Counts() if counts is None else counts
    sources = find(settings)
    errors = "strict" if settings.errors == "strict" else counting(counts)
    done = 0
    for source in sources:
        counts.files += 1
        with TextStream(source, settings.encoding, errors) as stream:
            for record in _READERS[source.format](stream, settings, counts, done):
                counts.documents += 1
                yield record
        done += source.size
    if not counts.documents:
        raise DataError(f"{', '.join(settings.inputs)}: {_why_nothing(counts)}")


def _why_nothing(counts: Counts) -> str:
    reasons = {
        "without any text": counts.empty,
        "broken": counts.skipped,
        "a redirect": counts.redirects,
        "no article but a page of another namespace": counts.other_namespaces,
    }
    found = [f"{count:,} {what}" for what, count in reasons.items() if count]
    return f"there is no document in them ({', '.join(found) or 'they are empty'}); name other inputs"


def _text(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    """Plain text: the file is one document, or each block between blank lines is."""
    if settings.documents == "blank_line":
        yield from _blocks(stream, settings, counts, done)
        return
    text = stream.text.read(settings.max_document + 1)
    if len(text) > settings.max_document:
        message = (
            f"{stream.path}: as one document, the file is longer than max_document={settings.max_document:,} "
            "characters; set documents=blank_line where blank lines part its documents, or raise max_document (the "
            "memory grows with it)"
        )
        _refuse(message, settings, counts)
        _drain(stream)
    elif text and not text.isspace():
        yield Record(text, str(stream.path), 1, done + stream.consumed)
    else:
        counts.empty += 1


def _drain(stream: TextStream) -> None:
    """Read on to the end, so that damage after what was left out is still noticed."""
    while stream.text.read(1 << 20):
        pass


def _blocks(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    block: list[str] = []
    start = length = 0
    for number, line in _lines(stream, settings, counts, "block between blank lines"):
        if line.isspace():
            if block:
                yield Record("".join(block), str(stream.path), start, done + stream.consumed)
            block, length = [], 0
            continue
        if not length:
            start = number
        length += len(line)
        if length <= settings.max_document:
            block.append(line)
        elif block:
            _refuse(_too_long(stream, start, "block between blank lines", settings), settings, counts)
            block = []  # and the rest of it is passed over, as the length stays above the limit
    if block:
        yield Record("".join(block), str(stream.path), start, done + stream.consumed)


def _lines(stream: TextStream, settings: TextInput, counts: Counts, what: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that is too long is refused without ever being held as a whole."""
    limit = settings.max_document + 1  # and the line end
    number = 0
    while line := stream.text.readline(limit):
        number += 1
        if len(line) == limit and not line.endswith("\n"):
            _refuse(_too_long(stream, number, what, settings), settings, counts)
            while line and not line.endswith("\n"):
                line = stream.text.readline(1 << 20)
            continue
        yield number, line


def _too_long(stream: TextStream, number: int, what: str, settings: TextInput) -> str:
    return (
        f"{stream.path}:{number}: this {what} is longer than max_document={settings.max_document:,} characters; raise "
        "it (the memory grows with it), or set on_error=skip to leave such out"
    )


def _refuse(message: str, settings: TextInput, counts: Counts) -> None:
    if settings.on_error == "stop":
        raise DataError(message)
    counts.skipped += 1


def _jsonl(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    """JSON lines: an object per line, with the text under ``json_key``; blank lines say nothing."""
    for number, line in _lines(stream, settings, counts, "line"):
        if line.isspace():
            continue
        text, problem = _value(line, settings.json_key)
        if problem:
            way_out = "or set on_error=skip to leave such lines out"
            _refuse(f"{stream.path}:{number}: {problem}; {way_out}", settings, counts)
            continue
        if "\\u" in line and not _encodable(text):
            text = _without_surrogates(text, f"{stream.path}:{number}", settings, counts)
        if not text or text.isspace():
            counts.empty += 1
            continue
        yield Record(text, str(stream.path), number, done + stream.consumed)


def _value(line: str, key: str) -> tuple[str, str]:
    """The text in a JSON line, or what is wrong with the line."""
    try:
        found: Any = json.loads(line)
    except RecursionError:
        return "", "the line is nested too deeply to be read; mend it"
    except ValueError as error:
        what = "is cut off" if not line.endswith("\n") else "is not valid JSON"
        return "", f'the line {what} ({error}); every line must be one whole object, such as {{"{key}": "..."}}'
    if not isinstance(found, dict):
        return "", f"expected an object with the key {key!r}, got {_kind(found)}; mend the line"
    if key not in found:
        has = ", ".join(repr(name) for name in list(found)[:8]) or "no key at all"
        return "", f"the key {key!r} is missing (the line has {has}); name the key of the text by json_key=..."
    value = found[key]
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
    """``text`` with U+FFFD for halves of surrogate pairs: JSON can escape them alone, but no tokenizer takes them."""
    halves = sum("\ud800" <= character <= "\udfff" for character in text)
    if settings.errors == "strict":
        raise DataError(
            f"{where}: the text has {halves} halves of surrogate pairs (\\ud800 to \\udfff), which are no characters; "
            "mend it, or set errors=replace"
        )
    counts.replaced += halves
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)


_READERS = {"text": _text, "jsonl": _jsonl, "mediawiki": pages}
