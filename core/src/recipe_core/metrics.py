"""Rows of metrics: a JSON line each, which everything else reads, and TensorBoard's files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from recipe_core.curves import METRICS, Row, read_rows
from recipe_core.files import write_text

TEXT_KEYS = ("step", "consumed_samples")
"""Keys that are positions rather than measurements: not drawn as curves."""


class Metrics:
    """Writes rows to ``metrics.jsonl`` and ``tensorboard/`` of a run folder, and shows each.

    A run that continues after step ``since`` first drops what a killed run wrote beyond it: no step stands twice.
    """

    def __init__(self, folder: Path, since: int, show: Callable[[Row], None]) -> None:
        from tensorboardX import SummaryWriter

        self.path, self.show = folder / METRICS, show
        rows = [row for row in read_rows(self.path) if row["step"] <= since] if since else []
        write_text(self.path, "".join(_line(row) for row in rows))
        self._file = self.path.open("a", encoding="utf-8", buffering=1)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=since + 1 if since else None)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._board.close()

    def write(self, row: Row) -> None:
        """Record one row, whole."""
        self._file.write(_line(row))
        for key, value in row.items():
            if key not in TEXT_KEYS:
                self._board.add_scalar(key, value, row["step"])
        self.show(row)


def _line(row: Row) -> str:
    # JSON has no NaN and no infinity: such a value becomes null, which every reader understands
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
