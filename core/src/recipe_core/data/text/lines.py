"""Lines of a text with their numbers, and what becomes of a document that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core.data.text.stream import TextStream
from recipe_core.data.text_settings import Counts, TextInput
from recipe_core.errors import DataError


def numbered_lines(stream: TextStream, settings: TextInput, counts: Counts, what: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; one that is too long is refused without ever being held as a whole."""
    limit = settings.max_document + 1  # and the line end
    number = 0
    while line := stream.text.readline(limit):
        number += 1
        if len(line) == limit and not line.endswith("\n"):
            refuse(too_long(stream, number, what, settings), settings, counts)
            while line and not line.endswith("\n"):
                line = stream.text.readline(1 << 20)
            continue
        yield number, line


def too_long(stream: TextStream, number: int, what: str, settings: TextInput) -> str:
    """The message for a document that ``max_document`` does not allow."""
    return (
        f"{stream.path}:{number}: this {what} is longer than max_document={settings.max_document:,} characters; raise "
        "it (the memory grows with it), or set on_error=skip to leave such out"
    )


def refuse(message: str, settings: TextInput, counts: Counts) -> None:
    """Count a document that cannot be used, or stop there, as ``on_error`` says.

    Raises:
        DataError: with ``message``, unless ``on_error=skip``.
    """
    if settings.on_error == "stop":
        raise DataError(message)
    counts.skipped += 1
