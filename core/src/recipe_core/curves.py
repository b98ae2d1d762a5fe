"""The metrics of a run as they lie on the disk: read back row by row, as a curve over its steps."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.errors import DataError

Row = dict[str, Any]
METRICS = "metrics.jsonl"
EXPECTED = "expected a run folder, its metrics.jsonl, or a file with one loss a line"


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl; a last line that a killed run left unfinished is dropped."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


@dataclass(frozen=True)
class Curve:
    """What a run measured, or a stored curve."""

    path: Path
    """As the user named it."""
    file: Path
    """Where the rows are."""
    rows: list[Row]

    def values(self, key: str = "loss") -> dict[int, float]:
        """A metric by step; not a number where the file has ``null``, which stands for what is not finite."""
        found = {row["step"]: row[key] for row in self.rows if key in row}
        return {step: float(value) if _is_number(value) else math.nan for step, value in found.items()}

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
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        missing = f"no {METRICS} in it" if path.is_dir() else "there is no such file or folder"
        raise DataError(f"{path}: {missing}; {EXPECTED}") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError:
        raise DataError(f"{file}: is not text; {EXPECTED}") from None
    rows = [row for number, line in enumerate(lines, 1) if (row := _row(file, number, line)) is not None]
    if not rows:
        raise DataError(f"{file}: holds no step; {EXPECTED}")
    return Curve(path, file, rows)


def _row(file: Path, number: int, line: str) -> Row | None:
    """One line as a row; None for an empty one and for a last one that is still being written."""
    if not line.strip():
        return None
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        if number > 1 and not line.endswith("\n"):
            return None
        found = None
    if _is_number(found):
        return {"step": number, "loss": found}
    if isinstance(found, dict) and isinstance(found.get("step"), int):
        return found
    shown = line.strip()
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise DataError(f'{file}, line {number}: expected a number or a JSON object with "step", got {shown!r}; {EXPECTED}')


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
