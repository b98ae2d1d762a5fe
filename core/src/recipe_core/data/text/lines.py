"""Numbered lines of a text, and the handling of unusable documents."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core.data.text.stream import TextStream
from recipe_core.data.text_settings import Counts, TextInput
from recipe_core.errors import DataError


def numbered_lines(stream: TextStream, settings: TextInput, counts: Counts, unit: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers; a line that is too long is refused and never held completely."""
    limit = settings.max_document + 1  # and the line end
    number = 0
    while line := stream.text.readline(limit):
        number += 1
        if len(line) == limit and not line.endswith("\n"):
            refuse(too_long(stream.source, number, unit, settings), settings, counts)
            while line and not line.endswith("\n"):
                line = stream.text.readline(1 << 20)
            continue
        yield number, line


def too_long(place: object, number: int, unit: str, settings: TextInput) -> str:
    """Return the message for a document longer than ``max_document``; ``place`` is the file, or a piece of it."""
    return (
        f"{place}:{number}: this {unit} is longer than max_document={settings.max_document:,} characters; "
        "raise it (the memory grows with it), or set on_error=skip to leave such out"
    )


def refuse(message: str, settings: TextInput, counts: Counts) -> None:
    """Count or raise an unusable document, depending on ``on_error``.

    Raises:
        DataError: with ``message``, unless ``on_error=skip``.
    """
    if settings.on_error == "stop":
        raise DataError(message)
    counts.skipped += 1
