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
from recipe_core.train.metrics.curves import METRICS, Row, damage, scan
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
        self._trim() if since else write_text(self.path, "")
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

    def _trim(self) -> None:
        """Keep the rows up to ``since``, one in memory at a time. Damaged lines are moved aside before that counts."""
        damaged: dict[int, bytes] = {}
        good = 0
        with atomic_file(self.path) as part:
            with part.open("w", encoding="utf-8") as out:
                for good, row in enumerate(scan(self.path, damaged), 1):  # noqa: B007  # their number is told below
                    if row["step"] <= self._since:
                        self._follow(row)
                        out.write(_line(row))
            if damaged:
                self._keep_aside(damaged, good)

    def _keep_aside(self, damaged: dict[int, bytes], good: int) -> None:
        aside = self.path.with_name(DAMAGED)
        known = aside.read_bytes() if aside.exists() else b""
        with atomic_file(aside) as part:
            part.write_bytes(known + b"".join(line + b"\n" for line in damaged.values()))
        rows = f"{good:,} good row" + "s" * (good != 1)
        self._warn(f"{damage(self.path, damaged)}; kept in {aside}, beside {rows} in {METRICS}")

    def _complete(self, row: Row) -> None:
        try:
            with atomic_file(self.path) as part, part.open("w", encoding="utf-8") as out:
                last: Row = {}
                for one in scan(self.path):
                    out.write(_line(last) if last else "")
                    last = one
                if last and last["step"] != row["step"]:
                    out.write(_line(last))
                    last = {}
                out.write(_line(last | row))
        except DiskError as error:
            self._warn(f"the evaluation of step {row['step']:,} is lost: {error}")

    def _follow(self, row: Row) -> None:
        if "loss" in row:
            self._trend.add(row["step"], row["loss"])


def _line(row: Row) -> str:
    # JSON has no NaN and no infinity: such a value becomes null, which every reader understands
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
