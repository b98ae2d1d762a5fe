"""The common interface of Parquet and Arrow files: a schema, groups of rows, and errors with the path of the file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from recipe_core.data.text.columns.messages import FILE_MAGIC, is_stream
from recipe_core.data.text_settings import Format
from recipe_core.errors import DataError
from recipe_core.files.objects.reading import ObjectFile

PARQUET_MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"
NAMES = {"parquet": "Parquet", "arrow": "Arrow"}
_OLDEST = 16


@dataclass(frozen=True)
class Group:
    """Consecutive rows that are stored together: a row group of Parquet, a record batch of Arrow."""

    number: int
    start: int
    """Byte of the file from which its rows are; 0 for the first."""
    before: int
    """Rows of the file before it."""
    rows: int


class Table(Protocol):
    """An open file."""

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema."""
        ...

    def groups(self) -> list[Group]:
        """Return the groups in order.

        Raises:
            DataError: the file is damaged or truncated.
        """
        ...

    def batches(self, groups: list[Group], column: str) -> Iterator[tuple[Group, Any]]:
        """Yield the column's arrays in order, each with its group; memory does not grow with the file.

        Raises:
            DataError: the file is damaged or truncated.
        """
        ...


def column_format(start: bytes) -> Format | None:
    """Return the format of a file with columns by its first bytes; None for another file."""
    if start.startswith((PARQUET_MAGIC, ENCRYPTED_MAGIC)):
        return "parquet"
    return "arrow" if start.startswith(FILE_MAGIC) or is_stream(start) else None


def require_pyarrow(path: Path | ObjectFile, form: str) -> None:
    """Require a pyarrow that can be used.

    Raises:
        DataError: it is not installed, or too old. Releases before 14.0.1 run code that a file names.
    """
    install = "pip install 'recipe-core[arrow]'"
    try:
        import pyarrow
    except ImportError as error:
        message = f"{path}: is a file of {NAMES[form]}, which needs the package pyarrow: {install}"
        raise DataError(message) from error
    if int(pyarrow.__version__.partition(".")[0]) < _OLDEST:
        raise DataError(f"{path}: expected pyarrow {_OLDEST} or later, found {pyarrow.__version__}: {install}")


@contextmanager
def decoding(path: Path | ObjectFile, form: str) -> Iterator[None]:
    """Word the errors of pyarrow; only its calls belong into this context.

    Raises:
        DataError: the file cannot be read, is encrypted, or is damaged.
    """
    import pyarrow

    try:
        yield
    except OSError as error:
        if error.errno:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
        raise damaged(path, form, error) from error  # pyarrow raises OSError for damage, without a number
    except (
        pyarrow.ArrowException,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        struct.error,
    ) as error:
        raise damaged(path, form, error) from error


def damaged(path: Path | ObjectFile, form: str, reason: object) -> DataError:
    """Return the error of a damaged file."""
    text = " ".join(str(reason).split())
    text = text if len(text) <= 200 else f"{text[:200]}..."
    if "crypt" in text:
        return DataError(f"{path}: {ENCRYPTED}")
    return DataError(
        f"{path}: is damaged ({NAMES[form]}: {text}); get the file again, and compare its checksum with the one that "
        "its source publishes"
    )


ENCRYPTED = "is encrypted; write it again without encryption"


def cut_off(path: Path | ObjectFile, form: str, expected: str) -> DataError:
    """Return the error of a truncated file; ``expected`` is what is missing at its end."""
    return DataError(f"{path}: does not end with {expected}, so the {NAMES[form]} file is cut off; get it again")
