"""The metrics of a run as they lie on the disk: read back row by row, as a curve over its steps."""

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
"""So many damaged lines are named; the others are counted."""
MOST_STEPS = 1 << 63
LARGEST = 1e300
"""Measurements up to here are added up without an overflow."""
MEASURES = ("loss", "accuracy", "norm", "lr", "mfu", "memory", "seconds", "per_second", "samples", "steps")
"""Endings of names whose values are calculated with: each is a number, or ``null`` for one that is not finite."""
EXPECTED = "expected a run folder, its metrics.jsonl, or a file with one loss a line"


@dataclass(frozen=True)
class Lines:
    """A metrics.jsonl as it lies on the disk."""

    rows: list[Row]
    damaged: dict[int, bytes]
    """Lines that are no row, by their number."""


def read_lines(path: Path) -> Lines:
    """Read a metrics.jsonl; empty where there is none. A last line that a killed run left unfinished is dropped.

    Raises:
        DataError: it cannot be read.
    """
    damaged: dict[int, bytes] = {}
    return Lines(list(scan(path, damaged)), damaged)


def scan(path: Path, damaged: dict[int, bytes] | None = None) -> Iterator[Row]:
    """The rows that :func:`read_lines` reads, one at a time; ``damaged`` takes the lines that are none.

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
    """The rows of a metrics.jsonl; ``warn`` takes a message that names damaged lines."""
    lines = read_lines(path)
    if lines.damaged and warn is not None:
        warn(f"{damage(path, lines.damaged)}; left out of what follows")
    return lines.rows


def damage(path: Path, numbers: Iterable[int]) -> str:
    """Name the damaged lines of a file."""
    known = [f"{number:,}" for number in numbers]
    if len(known) == 1:
        return f"{path}: line {known[0]} is damaged"
    more = f" and {len(known) - SHOWN:,} more" if len(known) > SHOWN else ""
    return f"{path}: lines {', '.join(known[:SHOWN])}{more} are damaged"


Column = tuple["array[int]", "array[float]"]
"""Steps, and the value at each; not a number where the file has something else, as ``null`` for what is not finite."""


@dataclass(frozen=True)
class Curve:
    """The measurements of a run, or a stored curve."""

    path: Path
    """As the user named it."""
    file: Path
    """Where the rows are."""
    columns: Mapping[str, Column]
    """The metrics, in the order of the file. A million rows as dictionaries take gigabytes."""

    def values(self, key: str = "loss") -> dict[int, float]:
        """A metric by step; not a number where the file has ``null``, which stands for what is not finite."""
        return dict(zip(*self.columns[key], strict=True)) if key in self.columns else {}

    def beside(self, name: str) -> Path | None:
        """Another file of the run folder, where the rows are of one that has it."""
        path = self.file.with_name(name)
        return path if self.file.name == METRICS and path.is_file() else None


def read_curve(path: Path) -> Curve:
    """Read a run folder, a metrics.jsonl, or a golden file.

    A golden file has lines of JSON like those of metrics.jsonl, of which ``step`` and ``loss`` are enough; or, as the
    published BERT scripts keep it, only a number on each line, the loss of step 1, 2, 3 and so on.

    Raises:
        DataError: there is no such file, or it holds something else; the message names the line.
    """
    file = path / METRICS if path.is_dir() else path
    if not file.exists():
        missing = f"no {METRICS} in it" if path.is_dir() else "there is no such file or folder"
        raise DataError(f"{path}: {missing}; {EXPECTED}")
    columns: dict[str, Column] = {}
    lines = (line for some in _lines(file) for line in some.splitlines(keepends=True))
    for number, line in enumerate(lines, 1):
        if row := _row(file, number, line):
            _add(columns, row)
    if not columns:
        raise DataError(f"{file}: holds no step; {EXPECTED}")
    return Curve(path, file, columns)


def read_run(folder: Path, damaged: dict[int, bytes]) -> Curve:
    """Read the metrics of a run folder, which may have none yet; ``damaged`` takes the lines that are no row.

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
    """One line as a row; None for an empty one and for a last one that is still being written."""
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
    """The lines of a file with their ends, one at a time."""
    try:
        with open_regular(path) as file:
            yield from file
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except DocumentError as error:
        raise DataError(f"{path}: {error}") from error


def _decoded(line: bytes) -> Any:
    """The JSON of a line; None where it is damaged."""
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _unfinished(line: bytes) -> bool:
    """True if the last line of a file is the beginning of a row, as a killed run leaves it."""
    text = line.startswith(b"{") and line.isascii() and b"\0" not in line
    return text and not line.endswith(b"\n") and _decoded(line) is None


def _is_row(value: object) -> TypeGuard[Row]:
    """True for a row as a run writes it. What is calculated with may have become a text or a list in a damaged file."""
    return (
        isinstance(value, dict)
        and _is_step(value.get("step"))
        and all(one is None or _is_measure(one) for name, one in value.items() if name.endswith(MEASURES))
    )


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_STEPS


def _is_measure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST
