"""From files to records, one at a time: the cheap stage, which one process can run for many workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from recipe_core.data.text.columns import column_records
from recipe_core.data.text.inputs import find
from recipe_core.data.text.json_lines import json_lines
from recipe_core.data.text.lines import numbered_lines, refuse, too_long
from recipe_core.data.text.stream import Replacing, TextStream
from recipe_core.data.text_settings import Counts, Record, Source, TextInput
from recipe_core.errors import DataError
from recipe_core.files.objects.reading import ObjectFile

_MAX_WARNINGS = 20
_warned: set[Path | ObjectFile] = set()
"""Files about whose encoding this process has warned."""


def records(
    settings: TextInput, counts: Counts | None = None, pieces: Sequence[Source] | None = None
) -> Iterator[Record]:
    """Yield the documents of all inputs in order, as written; ``clean`` converts them to text.

    Memory is bounded: a file is never held completely, unless it is one document.

    Args:
        counts: updated while documents are yielded.
        pieces: reads these alone, from :func:`recipe_core.data.text.pieces_of`; they may hold no document.

    Raises:
        DataError: an input is missing, damaged, truncated or of another type; a document cannot be used; or there is
            no document.
    """
    counts = Counts() if counts is None else counts
    sources = find(settings) if pieces is None else pieces
    replacing = None if settings.errors == "strict" else Replacing(counts, settings.most_replaced)
    done = 0
    for source in sources:
        counts.files += not source.start  # the piece at its start counts a file
        if source.has_columns:
            found = column_records(source, settings, counts, done)
        else:
            found = _stream_records(source, settings, counts, done, replacing)
        number = 0
        for number, record in enumerate(found, 1):
            counts.documents += 1
            yield replace(record, document=(str(source.path), number)) if settings.numbers_documents else record
        if number and settings.numbers_documents and not source.is_whole:
            counts.documents_in_pieces[str(source.path)] = number
        done += source.bytes
    if not counts.documents and pieces is None:
        raise DataError(f"{', '.join(settings.inputs)}: {_why_nothing(counts)}")


def _stream_records(
    source: Source, settings: TextInput, counts: Counts, done: int, replacing: Replacing | None
) -> Iterator[Record]:
    with TextStream(source, settings.encoding, replacing) as stream:
        yield from _READERS[source.format](stream, settings, counts, done)
        if replacing:
            replacing.judge()
            _warn(source.path, replacing)
            if replacing.places and not source.is_whole:
                counts.replaced_in_pieces[str(source.path)] = replacing.places


def _warn(path: Path | ObjectFile, replacing: Replacing) -> None:
    # Once per file, though several stages of a preparation read it.
    if not replacing.places or path in _warned:
        return
    if len(_warned) < _MAX_WARNINGS:
        print(f"recipe: warning: {replacing.report()}; U+FFFD stands for each now", file=sys.stderr, flush=True)
    elif len(_warned) == _MAX_WARNINGS:
        print("recipe: warning: the same in further files; the manifest counts all places", file=sys.stderr, flush=True)
    _warned.add(path)


def _why_nothing(counts: Counts) -> str:
    reasons = {
        "without any text": counts.empty,
        "broken": counts.skipped,
        "a redirect": counts.redirects,
        "no article but a page of another namespace": counts.other_namespaces,
    }
    counted = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
    return f"there is no document in them ({', '.join(counted) or 'they are empty'}); name other inputs"


def _text(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    if settings.documents == "blank_line":
        yield from _blocks(stream, settings, counts, done)
        return
    text = stream.text.read(settings.max_document + 1)
    if len(text) > settings.max_document:
        message = (
            f"{stream.source}: as one document, the file is longer than max_document={settings.max_document:,} "
            "characters; set documents=blank_line where blank lines part its documents, or raise max_document (the "
            "memory grows with it)"
        )
        refuse(message, settings, counts)
        _drain(stream)
    elif text and not text.isspace():
        yield Record(text, str(stream.source), 1, done + stream.consumed)
    else:
        counts.empty += 1


def _drain(stream: TextStream) -> None:
    # Damage in the rest of the file must still be detected.
    while stream.text.read(1 << 20):
        pass


def _blocks(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    block: list[str] = []
    start = length = 0
    for number, line in numbered_lines(stream, settings, counts, "block between blank lines"):
        if line.isspace():
            if block:
                yield Record("".join(block), str(stream.source), start, done + stream.consumed)
            block, length = [], 0
            continue
        if not length:
            start = number
        length += len(line)
        if length <= settings.max_document:
            block.append(line)
        elif block:
            refuse(too_long(stream.source, start, "block between blank lines", settings), settings, counts)
            block = []  # and the rest of it is skipped, as the length stays above the limit
    if block:
        yield Record("".join(block), str(stream.source), start, done + stream.consumed)


def _pages(stream: TextStream, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    from recipe_core.data.text.wikitext.dump import pages

    return pages(stream, settings, counts, done)


_READERS = {"text": _text, "jsonl": json_lines, "mediawiki": _pages}
