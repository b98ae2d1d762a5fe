"""Rows of TSV, CSV, JSON and Parquet files, with line numbers. No torch here."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recipe_core import DataError

Row = Mapping[str, Any]
ENDINGS = (".tsv", ".txt", ".csv", ".jsonl", ".json", ".parquet")
_COLA = ("source", "label", "mark", "sentence")
"""Columns of CoLA's files, which have no header."""


def rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Line or row number, and columns, of each row of ``path``.

    Raises:
        DataError: the file is missing, of an unknown kind, or damaged; the message names the line.
    """
    readers = {".csv": _csv, ".jsonl": _json_lines, ".json": _json, ".parquet": _parquet}
    if path.suffix.lower() not in ENDINGS:
        raise DataError(f"{path}: expected a name that ends in {', '.join(ENDINGS)}")
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: expected a regular file")
    try:
        yield from readers.get(path.suffix.lower(), _tsv)(path)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no text in UTF-8 ({error})") from error


def _tsv(path: Path) -> Iterator[tuple[int, Row]]:
    # Quotes are text, as in GLUE's and Microsoft's files.
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        lines = (line.rstrip("\r\n").split("\t") for line in file)
        heading = next(lines, [])
        first = 2
        if len(heading) == len(_COLA) and heading[1] in ("0", "1"):
            yield 1, dict(zip(_COLA, heading, strict=True))
            heading = list(_COLA)
        for number, fields in enumerate(lines, first):
            if fields != [""]:
                yield number, _row(path, number, heading, fields)


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            heading = next(reader, [])
            for fields in reader:
                if fields:
                    yield reader.line_num, _row(path, reader.line_num, heading, fields)
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: is not CSV ({error})") from error


def _row(path: Path, number: int, heading: list[str], fields: list[str]) -> Row:
    if len(fields) != len(heading):
        raise DataError(f"{path}, line {number}: has {len(fields)} fields, and the heading has {len(heading)}")
    return dict(zip(heading, fields, strict=True))


def _json_lines(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, _object(path, number, _parsed(path, line.strip(), number))


def _json(path: Path) -> Iterator[tuple[int, Row]]:
    # A list of objects, or one object per line.
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    for number, row in enumerate(_parsed(path, text, 1), 1):
        yield number, _object(path, number, row)


def _parsed(path: Path, text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DataError(f"{path}, line {number}: is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {number + error.lineno - 1}: is not JSON ({error.msg})") from error


def _object(path: Path, number: int, row: Any) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{path}, row {number}: expected an object of columns, got {type(row).__name__}")
    for name, value in row.items():
        if not (_is_text(name) and _is_text(value)):
            raise DataError(f"{path}, row {number}: {name!r}: holds half of a surrogate pair, which is no character")
    return row


def _is_text(value: object) -> bool:
    # JSON's escapes can name half of a surrogate pair, which cannot be encoded.
    try:
        return not isinstance(value, str) or value.encode() is not None
    except UnicodeEncodeError:
        return False


def _parquet(path: Path) -> Iterator[tuple[int, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: needs the package pyarrow; pip install 'recipe-hf-finetune[parquet]'") from error
    try:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: is no Parquet file, or damaged ({' '.join(str(error).split())})") from error
