"""The writer of metrics: a line of JSON per row, trackers, and the console."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from recipe_core.checkpoint.saving.retention import Trend
from recipe_core.errors import DiskError
from recipe_core.files import atomic_file, write_text
from recipe_core.train.metrics.curves import METRICS, Row, damage, scan
from recipe_core.train.metrics.record_file import RecordFile
from recipe_core.train.metrics.tracker import Trackers

DAMAGED = f"{METRICS}.damaged"
"""File for damaged lines, next to the metrics."""


class Metrics:
    """Writes rows to ``metrics.jsonl`` of a run folder, passes them to trackers, and shows them.

    A run that continues after step ``since`` first drops later rows of a killed run, so that no step occurs twice.
    Damaged lines are reported and moved to ``metrics.jsonl.damaged``. Later failures to write do not stop training, see
    :class:`recipe_core.train.metrics.record_file.RecordFile`.

    Args:
        folder: the run folder.
        since: last step done before.
        show: called with each row.
        warn: called with messages for the user.
        trend: gets every loss, those up to ``since`` too.
        trackers: other destinations, opened and closed with this writer.

    Raises:
        DiskError: the rows up to ``since`` cannot be written.
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
        """Write a row. Later measurements of step ``since`` are merged into its existing row."""
        step = row["step"]
        if self._since and step == self._since:
            self._complete(row)
        else:
            self._rows.append(step, _line(row).encode())
        self._trackers.log(row)
        self._add_to_trend(row)
        self.show(row)

    def _trim(self) -> None:
        # Keeps the rows up to `since`. Damaged lines are saved before the file is replaced.
        damaged: dict[int, bytes] = {}
        good = 0
        with atomic_file(self.path) as part:
            with part.open("w", encoding="utf-8") as out:
                for good, row in enumerate(scan(self.path, damaged), 1):  # noqa: B007  # the count is used below
                    if row["step"] <= self._since:
                        self._add_to_trend(row)
                        out.write(_line(row))
            if damaged:
                self._keep_aside(damaged, good)

    def _keep_aside(self, damaged: dict[int, bytes], good: int) -> None:
        aside = self.path.with_name(DAMAGED)
        earlier = aside.read_bytes() if aside.exists() else b""
        with atomic_file(aside) as part:
            part.write_bytes(earlier + b"".join(line + b"\n" for line in damaged.values()))
        rows = f"{good:,} good row" + "s" * (good != 1)
        self._warn(f"{damage(self.path, damaged)}; kept in {aside}, beside {rows} in {METRICS}")

    def _complete(self, row: Row) -> None:
        try:
            with atomic_file(self.path) as part, part.open("w", encoding="utf-8") as out:
                last: Row = {}
                for known in scan(self.path):
                    out.write(_line(last) if last else "")
                    last = known
                if last and last["step"] != row["step"]:
                    out.write(_line(last))
                    last = {}
                out.write(_line(last | row))
        except DiskError as error:
            self._warn(f"the evaluation of step {row['step']:,} is lost: {error}")

    def _add_to_trend(self, row: Row) -> None:
        if "loss" in row:
            self._trend.add(row["step"], row["loss"])


def _line(row: Row) -> str:
    # JSON has no NaN and no infinity: such a value becomes null, which every reader understands
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    return json.dumps(finite) + "\n"
