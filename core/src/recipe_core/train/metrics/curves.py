"""The metrics of a run as they lie on the disk: read back row by row, as a curve over its steps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.errors import DataError

Row = dict[str, Any]
METRICS = "metrics.jsonl"
SHOWN = 5
"""So many damaged lines are named; the others are counted."""
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
    lines = _bytes(path).split(b"\n") if path.exists() else [b""]
    content = Lines([], {})
    for number, line in enumerate(lines[:-1] if _unfinished(lines[-1]) else lines, 1):
        row = _decoded(line)
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            content.rows.append(row)
        elif line.strip():
            content.damaged[number] = line
    return content


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


@dataclass(frozen=True)
class Curve:
    """The measurements of a run, or a stored curve."""

    path: Path
    """As the user named it."""
    file: Path
    """Where the rows are."""
    rows: list[Row]

    def values(self, key: str = "loss") -> dict[int, float]:
        """A metric by step; not a number where the file has ``null``, which stands for what is not finite."""
        numbers = {row["step"]: row[key] for row in self.rows if key in row}
        return {step: float(value) if _is_number(value) else math.nan for step, value in numbers.items()}

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
    lines = _bytes(file).splitlines(keepends=True)
    rows = [row for number, line in enumerate(lines, 1) if (row := _row(file, number, line)) is not None]
    if not rows:
        raise DataError(f"{file}: holds no step; {EXPECTED}")
    return Curve(path, file, rows)


def _row(file: Path, number: int, line: bytes) -> Row | None:
    """One line as a row; None for an empty one and for a last one that is still being written."""
    if not line.strip() or (number > 1 and _unfinished(line)):
        return None
    decoded = _decoded(line)
    if _is_number(decoded):
        return {"step": number, "loss": decoded}
    if isinstance(decoded, dict) and isinstance(decoded.get("step"), int):
        return decoded
    shown = line.decode("utf-8", "backslashreplace").strip()
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise DataError(f'{file}, line {number}: expected a number or a JSON object with "step", got {shown!r}; {EXPECTED}')


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


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


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
