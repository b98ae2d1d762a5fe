"""The time limit of a job, and how long before it the run is asked to stop."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

import click

_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<hours>\d+):(?P<minutes>\d\d)(?::(?P<seconds>\d\d))?")
_UNITS = {"m": 1, "h": 60, "d": 24 * 60}
UNMEASURED = 300
"""Seconds to stop before the limit where no earlier run tells how long a step and a checkpoint take."""
SLACK = 90
"""Slurm looks at its clock every 60 seconds and may send the signal as much later; and some for the start of it all."""


class TimeLimit(click.ParamType):  # type: ignore[type-arg]  # click 8.2 has no argument
    """Minutes, from ``90m``, ``4h``, ``2d``, ``H:MM``, ``H:MM:SS`` or ``D-HH:MM:SS``."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Round up to whole minutes."""
        if isinstance(value, int):
            return value
        minutes = _minutes(str(value))
        if not minutes:
            self.fail(f"{value!r}: expected a time such as 90m, 4h, 2d, 4:00:00 or 2-12:00:00", param, ctx)
        return minutes


def _minutes(text: str) -> int:
    """Minutes of a time; 0 where it is none."""
    if match := re.fullmatch(r"(\d+)([mhd])", text):
        return int(match[1]) * _UNITS[match[2]]
    if match := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
        return (days * 24 + hours) * 60 + minutes + (seconds > 0)
    return 0


def stop_seconds(out: Path, minutes: int) -> int:
    """Seconds before the time limit at which the run of ``out`` should save and stop: at most half of the limit.

    Twice the time of a step and of a checkpoint, as the earlier run in this folder took them, and some slack.
    """
    step, save = _step_seconds(out), _save_seconds(out)
    wanted = UNMEASURED if step is None or save is None else SLACK + round(2 * (step + save))
    return min(wanted, minutes * 30) if minutes else wanted


def _step_seconds(out: Path) -> float | None:
    """The longest of the last steps; None where none was measured."""
    from recipe_core.train.metrics.curves import METRICS, scan

    rows = deque(scan(out / METRICS), maxlen=20)
    return max((row["seconds"] for row in rows if isinstance(row.get("seconds"), (int, float))), default=None)


def _save_seconds(out: Path) -> float | None:
    """The time over which the files of a checkpoint were written, of the slowest that is there; None: there is none."""
    from recipe_core.checkpoint.locate import steps

    spans = []
    for folder in steps(out):
        times = [path.stat().st_mtime for path in folder.rglob("*") if path.is_file()]
        spans += [max(times) - min(times)] if times else []
    return max(spans, default=None)


def median_step(rows: list[dict[str, Any]]) -> float | None:
    """The usual time of a step, in seconds; None where no row has it."""
    values = [row["seconds"] for row in rows[-50:] if isinstance(row.get("seconds"), (int, float))]
    if not values:
        return None
    import statistics  # and decimal with it, which most commands do without

    return float(statistics.median(values))
