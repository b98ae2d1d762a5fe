"""The time limit of a job, and the time to stop before it."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

import click

_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?")
_UNITS = {"m": 1, "h": 60, "d": 24 * 60}
UNMEASURED = 300
"""Seconds to stop before the limit if no earlier run measured a step and a checkpoint."""
SLACK = 90
"""Seconds: Slurm checks its clock every 60 s, so that the signal may be that late; and some for the start."""


class TimeLimit(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has no argument
    """Minutes, from ``90m``, ``4h``, ``2d``, ``H:MM``, ``H:MM:SS`` or ``D-HH:MM:SS``."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert to minutes, rounded up."""
        if isinstance(value, int):
            return value
        minutes = _minutes(str(value))
        if not minutes:
            self.fail(f"{value!r}: expected a time such as 90m, 4h, 2d, 4:00:00 or 2-12:00:00", param, ctx)
        return minutes


def _minutes(text: str) -> int:
    if match := re.fullmatch(r"(\d+)([mhd])", text):
        return int(match[1]) * _UNITS[match[2]]
    if match := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
        return (days * 24 + hours) * 60 + minutes + (seconds > 0)
    return 0


def stop_seconds(out: Path, minutes: int) -> int:
    """Return how many seconds before the time limit the run of ``out`` saves and stops: at most half of the limit.

    Twice the time of a step and of a checkpoint, as the earlier run in this folder measured them, plus slack.
    """
    step, save = _step_seconds(out), _save_seconds(out)
    wanted = UNMEASURED if step is None or save is None else SLACK + round(2 * (step + save))
    return min(wanted, minutes * 30) if minutes else wanted


def _step_seconds(out: Path) -> float | None:
    """The longest of the last 20 steps; None if none was measured."""
    from recipe_core.train.metrics.curves import METRICS, scan

    rows = deque(scan(out / METRICS), maxlen=20)
    return max((row["seconds"] for row in rows if isinstance(row.get("seconds"), (int, float))), default=None)


def _save_seconds(out: Path) -> float | None:
    """Write time of the slowest checkpoint, from the modification times of its files; None without a checkpoint."""
    from recipe_core.checkpoint.locate import steps

    spans = []
    for folder in steps(out):
        times = [path.stat().st_mtime for path in folder.rglob("*") if path.is_file()]
        spans += [max(times) - min(times)] if times else []
    return max(spans, default=None)


def median_step(rows: list[dict[str, Any]]) -> float | None:
    """Median seconds of the last 50 steps; None if no row has a time."""
    values = [row["seconds"] for row in rows[-50:] if isinstance(row.get("seconds"), (int, float))]
    if not values:
        return None
    import statistics  # here: it imports decimal, which most commands do not need

    return float(statistics.median(values))
