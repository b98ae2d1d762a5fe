"""The metrics of a run, read back from disk as rows or as curves over its steps."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from recipe_core.errors import DataError
from recipe_core.files.documents import DocumentError, open_regular

Row = dict[str, Any]
METRICS = "metrics.jsonl"
SHOWN = 5
"""Damaged lines that a message names; further ones are counted."""
MOST_STEPS = 1 << 63
LARGEST = 1e300
"""Largest measurement: sums of such values do not overflow."""
MEASURES = ("loss", "accuracy", "norm", "lr", "mfu", "memory", "seconds", "per_second", "samples", "steps")
"""Suffixes of the names of measurements: each value is a number, or ``null`` if it was not finite."""
EXPECTED = "expected a run folder, its metrics.jsonl, or a file with one loss a line"


@dataclass(frozen=True)
class Lines:
    """The contents of a metrics.jsonl."""

    rows: list[Row]
    damaged: dict[int, bytes]
    """Damaged lines by line number."""


def read_lines(path: Path) -> Lines:
    """Read a metrics.jsonl; empty if there is none. An unfinished last line, as a killed run leaves it, is dropped.

    Raises:
        DataError: it cannot be read.
    """
    damaged: dict[int, bytes] = {}
    return Lines(list(scan(path, damaged)), damaged)


def scan(path: Path, damaged: dict[int, bytes] | None = None) -> Iterator[Row]:
    """The rows of :func:`read_lines`, one at a time; damaged lines are added to ``damaged``.

    Raises:
        DataError: the file cannot be read.
    """
    if not path.exists():
        return
    for number, line in enumerate(_lines(path), 1):
        if _unfinished(line):
            return
        row = _decoded(line)
        if _is_row(row):
            yield row
        elif damaged is not None and line.strip():
            damaged[number] = line.removesuffix(b"\n")


def read_rows(path: Path, warn: Callable[[str], None] | None = None) -> list[Row]:
    """The rows of a metrics.jsonl; ``warn`` is called with a message about damaged lines."""
    lines = read_lines(path)
    if lines.damaged and warn is not None:
        warn(f"{damage(path, lines.damaged)}; left out of what follows")
    return lines.rows


def damage(path: Path, numbers: Iterable[int]) -> str:
    """Message that names the damaged lines of a file."""
    lines = [f"{number:,}" for number in numbers]
    if len(lines) == 1:
        return f"{path}: line {lines[0]} is damaged"
    more = f" and {len(lines) - SHOWN:,} more" if len(lines) > SHOWN else ""
    return f"{path}: lines {', '.join(lines[:SHOWN])}{more} are damaged"


Column = tuple["array[int]", "array[float]"]
"""Steps, and the value at each; NaN where the file has no number, but ``null`` for example."""


@dataclass(frozen=True)
class Curve:
    """The measurements of a run, or a stored curve."""

    path: Path
    """As the user named it."""
    file: Path
    """The file with the rows."""
    columns: Mapping[str, Column]
    """The metrics, in the order of the file; as columns, since a million rows as dictionaries take gigabytes."""

    def values(self, key: str = "loss") -> dict[int, float]:
        """A metric by step; NaN where the file has ``null``, which stands for a value that is not finite."""
        return dict(zip(*self.columns[key], strict=True)) if key in self.columns else {}

    def sibling(self, name: str) -> Path | None:
        """Another file of the run folder; None if the curve is not of a run folder, or there is no such file."""
        path = self.file.with_name(name)
        return path if self.file.name == METRICS and path.is_file() else None


def read_curve(path: Path) -> Curve:
    """Read a run folder, a metrics.jsonl, or a golden file.

    A golden file has lines of JSON as in metrics.jsonl, with at least ``step`` and ``loss``; or one number per line,
    the losses of the steps from 1 on, as the published BERT scripts keep them.

    Raises:
        DataError: there is no such file, or it has another format; the message names the line.
    """
    file = path / METRICS if path.is_dir() else path
    if not file.exists():
        missing = f"no {METRICS} in it" if path.is_dir() else "there is no such file or folder"
        raise DataError(f"{path}: {missing}; {EXPECTED}")
    columns: dict[str, Column] = {}
    lines = (line for block in _lines(file) for line in block.splitlines(keepends=True))
    for number, line in enumerate(lines, 1):
        if row := _row(file, number, line):
            _add(columns, row)
    if not columns:
        raise DataError(f"{file}: holds no step; {EXPECTED}")
    return Curve(path, file, columns)


def read_run(folder: Path, damaged: dict[int, bytes]) -> Curve:
    """Read the metrics of a run folder, which may have none yet; damaged lines are added to ``damaged``.

    Raises:
        DataError: they cannot be read.
    """
    columns: dict[str, Column] = {}
    for row in scan(folder / METRICS, damaged):
        _add(columns, row)
    return Curve(folder, folder / METRICS, columns)


def _add(columns: dict[str, Column], row: Row) -> None:
    for key, value in row.items():
        steps, values = columns.setdefault(key, (array("q"), array("d")))
        steps.append(row["step"])
        values.append(float(value) if _is_measure(value) else math.nan)


def _row(file: Path, number: int, line: bytes) -> Row | None:
    # None for an empty line, and for an unfinished last line
    if not line.strip() or (number > 1 and _unfinished(line)):
        return None
    decoded = _decoded(line)
    if _is_measure(decoded):
        return {"step": number, "loss": decoded}
    if isinstance(decoded, dict) and _is_step(decoded.get("step")):
        return decoded
    shown = line.decode("utf-8", "backslashreplace").strip()
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise DataError(f'{file}, line {number}: expected a number or a JSON object with "step", got {shown!r}; {EXPECTED}')


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_regular(path) as file:
            yield from file
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except DocumentError as error:
        raise DataError(f"{path}: {error}") from error


def _decoded(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _unfinished(line: bytes) -> bool:
    # A killed run leaves the beginning of a row as the last line.
    text = line.startswith(b"{") and line.isascii() and b"\0" not in line
    return text and not line.endswith(b"\n") and _decoded(line) is None


def _is_row(value: object) -> TypeGuard[Row]:
    # In a damaged file, measurements may be texts or lists.
    return (
        isinstance(value, dict)
        and _is_step(value.get("step"))
        and all(item is None or _is_measure(item) for name, item in value.items() if name.endswith(MEASURES))
    )


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_STEPS


def _is_measure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
