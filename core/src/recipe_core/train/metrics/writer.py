"""Rows of metrics: a JSON line each, which everything else reads, and what trackers get of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from recipe_core.checkpoint.retention import Trend
from recipe_core.errors import DiskError
from recipe_core.files import atomic_file, write_text
from recipe_core.train.metrics.curves import METRICS, Row, damage, read_lines
from recipe_core.train.metrics.record_file import RecordFile
from recipe_core.train.metrics.tracker import Trackers

DAMAGED = f"{METRICS}.damaged"
"""Where damaged lines are kept, beside the metrics."""


class Metrics:
    """Writes rows to ``metrics.jsonl`` of a run folder, passes them on to trackers, and shows each.

    A run that continues after step ``since`` first drops what a killed run wrote beyond it: no step stands twice.
    Damaged lines are named and kept in ``metrics.jsonl.damaged``. From then on no failure to write stops training; see
    :class:`recipe_core.train.metrics.record_file.RecordFile`.

    Args:
        folder: the run folder.
        since: the last step that was done before.
        show: takes each row.
        warn: takes a message for the user.
        trend: told every loss, those of before ``since`` too.
        trackers: other places where rows are shown; opened and closed with this.

    Raises:
        DiskError: the rows of before ``since`` cannot be written.
    """

    def __init__(
        self, folder: Path, since: int, show: Callable[[Row], None], warn: Callable[[str], None],
        trend: Trend | None = None, trackers: Trackers | None = None,
    ) -> None:  # fmt: skip
        self.path, self.show, self._since = folder / METRICS, show, since
        self._warn, self._trend = warn, trend or Trend()
        rows = self._kept() if since else []
        for row in rows:
            self._follow(row)
        write_text(self.path, "".join(_line(row) for row in rows))
        self._rows = RecordFile(self.path, "rows", warn)
        self._trackers = trackers or Trackers()
        self._trackers.open(folder, since, warn)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.close()
        self._trackers.close()

    def write(self, row: Row) -> None:
        """Record one row, whole. What is measured of step ``since`` afterwards completes the row that is there."""
        step = row["step"]
        if self._since and step == self._since:
            self._complete(row)
        else:
            self._rows.append(step, _line(row).encode())
        self._trackers.log(row)
        self._follow(row)
        self.show(row)

    def _kept(self) -> list[Row]:
        """The rows up to ``since``. Damaged lines are moved aside before anything is rewritten."""
        lines = read_lines(self.path)
        if lines.damaged:
            aside = self.path.with_name(DAMAGED)
            known = aside.read_bytes() if aside.exists() else b""
            with atomic_file(aside) as part:
                part.write_bytes(known + b"".join(line + b"\n" for line in lines.damaged.values()))
            rows = f"{len(lines.rows):,} good row" + "s" * (len(lines.rows) != 1)
            self._warn(f"{damage(self.path, lines.damaged)}; kept in {aside}, beside {rows} in {METRICS}")
        return [row for row in lines.rows if row["step"] <= self._since]

    def _complete(self, row: Row) -> None:
        rows = read_lines(self.path).rows
        first = rows.pop() if rows and rows[-1]["step"] == row["step"] else {}
        try:
            write_text(self.path, "".join(_line(one) for one in [*rows, first | row]))
        except DiskError as error:
            self._warn(f"the evaluation of step {row['step']:,} is lost: {error}")

    def _follow(self, row: Row) -> None:
        if "loss" in row:
            self._trend.add(row["step"], row["loss"])


def _line(row: Row) -> str:
    # JSON has no NaN and no infinity: such a value becomes null, which every reader understands
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
