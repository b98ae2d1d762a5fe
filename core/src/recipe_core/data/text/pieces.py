"""Cut the inputs for the parts of a preparation: inside files where a document starts, compressed ones as a whole."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from recipe_core.data.prepare.inputs import hashed_part
from recipe_core.data.prepare.part import PreparePart
from recipe_core.data.prepare.parts import PreparedPart, merged_inputs
from recipe_core.data.text.columns import group_starts
from recipe_core.data.text.stream import BLOCK, too_many
from recipe_core.data.text_settings import Source, TextInput
from recipe_core.errors import DataError

_CUT = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[rtu]")
"""Encodings, by the names of Python's codecs, in which each byte 0x0A ends a line, and text can be read from there."""
_SPACE = b" \t\r\v\f"
_BLANK = re.compile(rb"\n[ \t\r\v\f]*\n")


def pieces_of(settings: TextInput, sources: Sequence[Source], part: PreparePart) -> list[Source]:
    """Return what ``part`` reads of ``sources``: the same documents on every machine, each in one part.

    The bytes of all files are divided evenly. JSON lines, and plain text with ``documents=blank_line``, are cut where
    the next document starts, Parquet and Arrow files where the next row group or record batch starts; other files are
    read by the part in which they begin.

    Raises:
        DataError: a file cannot be read.
    """
    total = sum(source.size for source in sources)
    low, high = part.range_of(total)
    pieces, before = [], 0
    for source in sources:
        begins_here = part.owns(before, total)
        if not _can_be_cut(settings, source):
            pieces += [source] * begins_here
        else:
            start, stop = _cuts(settings, source, [low - before, high - before])
            if start < stop or begins_here:
                pieces.append(replace(source, start=start, stop=stop))
        before += source.size
    return pieces


def hashed_pieces(
    settings: TextInput,
    sources: Sequence[Source],
    facts: Sequence[Mapping[str, Any]],
    part: PreparePart,
    pieces: Sequence[Source],
) -> Callable[[], dict[str, Any]]:
    """Start to hash, in a thread, what ``part`` reads; see :func:`recipe_core.data.prepare.hashed_part`.

    Args:
        settings: of the inputs.
        sources: all inputs, from :func:`find`.
        facts: of ``sources``, by :func:`recipe_core.data.prepare.input_facts`.
        part: the part.
        pieces: of ``part``, from :func:`pieces_of`.
    """

    def bounds(paths: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
        return dict(_bounds_of(settings, sources, part.count, {*paths}))

    read = {str(piece.path): (piece.start, piece.start + piece.bytes) for piece in pieces}
    return hashed_part(facts, part, read, bounds)


def require_encoding(settings: TextInput, parts: Sequence[PreparedPart]) -> None:
    """Refuse files in whose pieces, taken together, more bytes were replaced than ``most_replaced`` permits.

    Each part must have ``Counts.replaced_in_pieces`` in its manifest.

    Raises:
        DataError: there is such a file.
    """
    places: Counter[str] = Counter()
    for part in parts:
        places.update(part.manifest.get("replaced_in_pieces", {}))
    for entry in merged_inputs(parts):
        path, size = entry["path"], entry["bytes"]
        if settings.errors == "replace" and too_many(places[path], size, settings.most_replaced):
            raise DataError(
                f"{path}: {places[path]:,} places in {size:,} bytes are not {settings.encoding}; prepare the parts "
                "with encoding=... set to what the file is written in, or, if it is right, with most_replaced=1"
            )


def _bounds_of(
    settings: TextInput, sources: Sequence[Source], count: int, wanted: set[str]
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    # what each of the parts reads of the wanted files
    total, before = sum(source.size for source in sources), 0
    for source in sources:
        cuts = {0, source.size}
        if str(source.path) in wanted and _can_be_cut(settings, source) and source.size:
            first, last = (at * count // total for at in (before, before + source.size))
            numbers = range(first, min(last + 1, count) + 1)
            cuts |= {*_cuts(settings, source, [total * number // count - before for number in numbers])}
        if str(source.path) in wanted:
            yield str(source.path), list(pairwise(sorted(cuts)))
        before += source.size


def _can_be_cut(settings: TextInput, source: Source) -> bool:
    if source.has_columns:
        return True
    has_starts = source.format == "jsonl" or (source.format == "text" and settings.documents == "blank_line")
    return has_starts and source.packing is None and bool(_CUT.fullmatch(codecs.lookup(settings.encoding).name))


def _cuts(settings: TextInput, source: Source, places: Sequence[int]) -> list[int]:
    """For each place, the first byte from there on where a document can start; the end of the file if there is none."""
    inside = [at for at in places if 0 < at < source.size]
    if source.has_columns and inside:
        starts = [*group_starts(source, settings), source.size]
        found = {at: starts[bisect_left(starts, at)] for at in inside}
    else:
        found = {at: _document_start(source, at) for at in inside}
    return [found.get(at, source.size if at > 0 else 0) for at in places]


def _document_start(source: Source, at: int) -> int:
    try:
        return _after_line(source, at) if source.format == "jsonl" else _after_blank_line(source, at)
    except OSError as error:
        raise DataError(f"{source.path}: cannot be read ({error.strerror or error})") from error


def _after_line(source: Source, at: int) -> int:
    for start, block in _blocks(source, at - 1):
        if (end := block.find(b"\n")) >= 0:
            return start + end + 1
    return source.size


def _after_blank_line(source: Source, at: int) -> int:
    is_open = False  # the last block ends in white space after a line end
    for start, block in _blocks(source, at - 1):
        rest = block.lstrip(_SPACE) if is_open else block
        if is_open and rest[:1] == b"\n":
            return start + len(block) - len(rest) + 1
        if is_open and not rest:
            continue
        if blank := _BLANK.search(block):
            return start + blank.end()
        _, line_end, tail = block.rpartition(b"\n")
        is_open = bool(line_end) and not tail.strip(_SPACE)
    return source.size


def _blocks(source: Source, start: int) -> Iterator[tuple[int, bytes]]:
    with source.path.open("rb", buffering=0) as file:
        file.seek(start)
        while block := file.read(min(BLOCK, source.size - start)):
            yield start, block
            start += len(block)
