"""Console lines for rows of metrics: in 80 columns, or in a format of the recipe (``train.log_format``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from recipe_core.errors import RecipeError
from recipe_core.hooks.target import as_plugin_error, load
from recipe_core.settings.job import Job
from recipe_core.settings.log_format import target_of
from recipe_core.train.metrics.curves import Row
from recipe_core.train.metrics.report import warn

WIDTH = 80
"""Most columns of a line."""
_GAP = "  "
_RECENT = 15
"""Rows whose median is the time of a step: a slow one, the first above all, does not move it."""


def log_line(job: Job, since: int = 0) -> Callable[[Row], str]:
    """The formatter of rows of metrics, for a run of ``job`` that begins after step ``since``."""
    compact = Compact.of(job, since)
    target = target_of(job.recipe, job.train.log_format)
    if not target:
        return compact
    owner = f"recipe {job.recipe.name!r}"
    return _OwnLine(load(target, owner), f"{owner}: {target!r}", job, compact)


@dataclass(frozen=True)
class Compact:
    """Lines of step, loss, learning rate, gradient norm, speed, time left, memory; an evaluation has its own line."""

    steps: int
    """Steps of the schedule."""
    end: int
    """The last step of this invocation, for the time left."""
    batch: int
    """Samples a step."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT), compare=False)
    """Seconds per step of the last rows."""

    @classmethod
    def of(cls, job: Job, since: int) -> Compact:
        """The format for a run of ``job`` that begins after step ``since``."""
        train = job.train
        end = train.steps if train.stop_after is None else min(train.steps, since + train.stop_after)
        return cls(train.steps, end, train.global_batch)

    def __call__(self, row: Row) -> str:
        head = f"{row['step']:>{len(str(self.steps))}}/{self.steps}"
        validation = [f"validation {text}" if n == 0 else text for n, text in enumerate(_validation(row))]
        lines = [_fitted(head, self._training(row))] if row.get("loss") is not None else []
        return "\n".join([*lines, *(_wrapped(head, validation) if validation else [])] or [head])

    def _training(self, row: Row) -> list[str]:
        fields = {  # the most important one first
            "epoch": f"epoch {row['epoch']:.2f}" if "epoch" in row else "",
            "loss": f"loss {row['loss']:.4f}",
            "lr": f"lr {row['lr']:.1e}" if row.get("lr") is not None else "",
            "norm": f"norm {_digits(row['grad_norm'])}" if row.get("grad_norm") is not None else "",
            "speed": _speed(row),
            "left": self._left(row),
            "memory": f"{row['peak_memory'] / 1e9:.1f} GB" if row.get("peak_memory") else "",
        }
        return [text for text in fields.values() if text]

    def _left(self, row: Row) -> str:
        speed, steps = row.get("samples_per_second"), self.end - row["step"]
        if speed:
            self.recent.append(row.get("seconds") or self.batch / speed)
        return f"{duration(steps * median(self.recent))} left" if speed and steps > 0 else ""


def duration(seconds: float) -> str:
    """Seconds in their two largest units: ``45s``, ``4m10s``, ``3h05m``, ``2d04h``."""
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{smaller}"
    return f"{whole}s"


def _speed(row: Row) -> str:
    for name, unit in (("real_tokens", "tok/s"), ("tokens", "tok/s"), ("samples", "samples/s")):
        if speed := row.get(f"{name}_per_second"):
            return f"{_short(speed)} {unit}"
    return ""


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{_digits(number / size)}{letter}"
    return _digits(number)


def _digits(number: float) -> str:
    # three significant digits, with trailing zeros for alignment
    return f"{number:#.3g}".rstrip(".")


def _validation(row: Row) -> Iterator[str]:
    names = sorted((name for name in row if name.startswith("val_")), key=lambda name: name != "val_loss")
    for name in names:
        if row[name] is not None:
            yield f"{name.removeprefix('val_').replace('_', ' ')} {row[name]:.4f}"
    yield from (f"{name} {value:.4f}" for name, value in row.items() if "/" in name and value is not None)


def _fitted(head: str, fields: Sequence[str]) -> str:
    # one line, without the fields that do not fit
    line = head
    for text in fields:
        if len(line) + len(_GAP) + len(text) <= WIDTH:
            line += _GAP + text
    return line


def _wrapped(head: str, fields: Sequence[str]) -> list[str]:
    lines = [head]
    for text in fields:
        if len(lines[-1]) + len(_GAP) + len(text) > WIDTH:
            lines.append(" " * len(head))
        lines[-1] += _GAP + text
    return lines


class _OwnLine:
    """A recipe's own format; after its first failure, compact lines, so that a formatter cannot end a run."""

    def __init__(self, line: Callable[[Row, Job], Any], code: str, job: Job, compact: Compact) -> None:
        self._line, self._code, self._job, self._compact, self._fails = line, code, job, compact, False

    def __call__(self, row: Row) -> str:
        if not self._fails:
            try:
                with as_plugin_error(self._code):
                    line = self._line(row, self._job)
                if isinstance(line, str):
                    return line
                warn(f"{self._code} returned {line!r:.60}, and not a line; the plain lines follow")
            except RecipeError as error:
                warn(f"{error}; the plain lines follow")
            self._fails = True
        return self._compact(row)
