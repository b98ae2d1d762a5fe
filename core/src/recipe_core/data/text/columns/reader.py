"""From the rows of Parquet and Arrow files to records, and where such files can be cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from recipe_core.data.text.columns.arrow import ArrowTable
from recipe_core.data.text.columns.parquet import ParquetTable
from recipe_core.data.text.columns.table import Group, Table, damaged, decoding, require_pyarrow
from recipe_core.data.text.lines import refuse, too_long
from recipe_core.data.text_settings import Counts, Record, Source, TextInput
from recipe_core.errors import DataError

_TABLES: dict[str, type[ParquetTable] | type[ArrowTable]] = {"parquet": ParquetTable, "arrow": ArrowTable}
_TEXTS = {"string", "large_string", "string_view"}
_SHOWN = 8


def column_problem(source: Source, settings: TextInput) -> str:
    """Return why the texts of a file cannot be read, as far as its schema and its end show; empty if they can.

    Raises:
        DataError: pyarrow is missing.
    """
    require_pyarrow(source.path, source.format)
    try:
        with _open(source, settings):
            return ""
    except DataError as error:
        return str(error).removeprefix(f"{source.path}: ")


def group_starts(source: Source, settings: TextInput) -> list[int]:
    """Return the bytes at which a file can be cut: where its row groups or record batches start.

    Raises:
        DataError: the file cannot be read, or is damaged.
    """
    with _open(source, settings) as table:
        return sorted({group.start for group in table.groups()})


def column_records(source: Source, settings: TextInput, counts: Counts, done: int) -> Iterator[Record]:
    """Yield a record per row of a file, or of its groups in a piece.

    Blank texts are skipped unless the settings keep them. Rows are numbered in the whole file.

    Raises:
        DataError: a row has no text (unless ``on_error=skip``); the file is damaged, truncated, or has no such column.
    """
    path = str(source.path)
    stop = source.size if source.stop is None else source.stop
    with _open(source, settings) as table:
        groups = [group for group in table.groups() if source.start <= group.start < stop]
        total, read = sum(group.rows for group in groups), 0
        for number, text in _texts(source, table, groups, settings):
            read += 1
            if problem := _problem(source, number, text, settings):
                refuse(problem, settings, counts)
                continue
            assert text is not None
            blank = not text or text.isspace()
            counts.empty += blank
            if not blank or settings.keeps_empty:
                yield Record(text, path, number, done + source.bytes * read // total)


@contextmanager
def _open(source: Source, settings: TextInput) -> Iterator[Table]:
    require_pyarrow(source.path, source.format)
    try:
        file: Any = source.path.open("rb")
    except OSError as error:
        raise DataError(f"{source.path}: cannot be read ({error.strerror or error})") from error
    with file:
        table: Table = _TABLES[source.format](source.path, file, source.size)
        with decoding(source.path, source.format):  # names in a damaged schema are no text
            problem = _schema_problem(table.schema, settings.json_key)
        if problem:
            raise DataError(f"{source.path}: {problem}")
        yield table


def _schema_problem(schema: Any, column: str) -> str:
    found = [field.type for field in schema if field.name == column]
    if len(found) == 1 and _is_text(found[0]):
        return ""
    texts = [repr(field.name) for field in schema if _is_text(field.type)]
    others = [f"{field.name!r} ({field.type})" for field in schema]
    if texts:
        advice = f"name one of its columns of text by json_key=...: {_some(texts)}"
    else:
        advice = f"none of its columns holds text: {_some(others) or 'it has none'}; name other inputs"
    if not found:
        return f"there is no column {column!r}; {advice}"
    if len(found) > 1:
        return f"has {len(found)} columns {column!r}; give each column a name of its own"
    return f"the column {column!r} is of the type {found[0]}, expected text (string); {advice}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return str(kind.value_type if types.is_dictionary(kind) else kind) in _TEXTS


def _texts(source: Source, table: Table, groups: list[Group], settings: TextInput) -> Iterator[tuple[int, str | None]]:
    """The text of each row, and its number in the file."""
    rows = {group.number: 0 for group in groups}
    for group, array in table.batches(groups, settings.json_key):
        _validate(source, array)
        for scalar in array:
            rows[group.number] += 1
            number = group.before + rows[group.number]
            try:
                text = scalar.as_py()
            except UnicodeDecodeError as error:
                raise _not_utf8(f"{source.path}:{number}", error.object[error.start : error.end].hex(" ")) from error
            yield number, text
    wrong = next((group for group in groups if rows[group.number] != group.rows), None)
    if wrong is not None:
        reason = f"expected {wrong.rows:,} rows from row {wrong.before + 1:,} on, got {rows[wrong.number]:,}"
        raise damaged(source.path, source.format, reason)


def _validate(source: Source, array: Any) -> None:
    """Check the offsets of texts, which pyarrow follows without a look: those of a damaged file may lead anywhere.

    Raises:
        DataError: they are wrong.
    """
    from pyarrow import types

    with decoding(source.path, source.format):
        try:
            array.validate(full=True)
        except ValueError as error:
            if "UTF8" not in str(error):
                raise
            # Texts are checked after the offsets, so single ones can be read to find the row; of a dictionary, the
            # indices are checked last.
            if types.is_dictionary(array.type):
                raise _not_utf8(str(source.path), "in a dictionary of texts") from error


def _not_utf8(where: str, what: str) -> DataError:
    return DataError(f"{where}: the column holds bytes that are not UTF-8 ({what}); write the file again")


def _problem(source: Source, number: int, text: str | None, settings: TextInput) -> str:
    if text is None:
        return (
            f"{source.path}:{number}: expected a text in the column {settings.json_key!r}, got null; name another "
            "column by json_key=..., or set on_error=skip to leave such rows out"
        )
    return too_long(source.path, number, "text", settings) if len(text) > settings.max_document else ""
