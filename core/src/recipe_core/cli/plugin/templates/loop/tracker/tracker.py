"""The tracker."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from recipe_core import TrackedRun

from recipe_new_plugin.plugin import Table


class Rows:
    """A table with a line per value, flushed at once, so that a killed process loses nothing."""

    def __init__(self, path: Path, since: int) -> None:
        earlier = [
            row for row in _read(path) if int(row[0]) <= since
        ]  # a run that continues logs later steps again
        self.file = path.open("w", newline="", encoding="utf-8", buffering=1)
        self.writer = csv.writer(self.file)
        self.writer.writerows([("step", "tag", "value"), *earlier])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record ``values`` by their tags (``train/loss``)."""
        self.writer.writerows((step, tag, value) for tag, value in values.items())

    def close(self) -> None:
        """Close the file; called once, also after a failure of the run."""
        self.file.close()


def _read(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def build(config: Table, run: TrackedRun) -> Rows:
    """Open the table of a run; only rank 0 calls it."""
    return Rows(run.folder / config.file, run.since)
