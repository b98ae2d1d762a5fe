"""Files with columns for tests: Parquet, and Arrow's file and stream formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from recipe_core.data.text import TextInput, records
from recipe_core.errors import DataError

Write = Callable[..., None]


def parquet(path: Path, table: Any, rows: int = 10, **options: Any) -> None:
    """Row groups of ``rows`` rows."""
    pyarrow.parquet.write_table(table, path, row_group_size=rows, **options)


def arrow_file(path: Path, table: Any, rows: int = 10, compression: str | None = None) -> None:
    """The file format, in batches of ``rows`` rows."""
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, rows)


def arrow_stream(path: Path, table: Any, rows: int = 10, compression: str | None = None) -> None:
    """The stream format, in batches of ``rows`` rows."""
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table, rows)


FORMS: dict[str, Write] = {"parquet": parquet, "arrow": arrow_file, "arrows": arrow_stream}
"""By the endings of their names."""


def table(texts: Sequence[str | None], kind: Any = None) -> Any:
    """A table with numbers, lists, and ``texts`` of the type ``kind``."""
    column = pyarrow.array(texts, kind or pyarrow.string())
    numbers = range(len(texts))
    return pyarrow.table({"id": numbers, "tags": [[number] for number in numbers], "text": column})


def read(*paths: Path | str, **given: Any) -> list[str]:
    """The texts of all documents."""
    return [record.text for record in records(TextInput(tuple(map(str, paths)), **given))]


def refusal(*paths: Path | str, **given: Any) -> str:
    """The message with which files are refused: one line."""
    with pytest.raises(DataError) as error:
        list(records(TextInput(tuple(map(str, paths)), **given)))
    assert "\n" not in str(error.value)
    return str(error.value)
