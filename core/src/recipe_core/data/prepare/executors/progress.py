"""The progress of parts: a line that is rewritten on a terminal, else one every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from recipe_core.data.prepare.progress import EVERY, Reported, reported


class PartsProgress:
    """Shows numbers of parts, completed bytes of the inputs, MB/s and remaining time on standard error.

    Args:
        files: of each part that is not complete, the file in which it reports its numbers.
        complete: number of parts that an earlier run has made.
    """

    def __init__(self, files: Mapping[int, Path], complete: int) -> None:
        self._files, self._complete = dict(files), complete
        self._numbers: dict[int, Reported] = {}
        self._begun = self._shown = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> PartsProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("", total=len(self._files) + self._complete)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def every(self) -> float:
        """Seconds between two calls of :meth:`show`."""
        return EVERY if self._bar is None else 1.0

    def note(self, line: str) -> None:
        """Print a line about one part."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def show(self, done: int, failed: int, *, last: bool = False) -> None:
        """Show the progress; without a terminal, only if the last line is old enough, or this is the ``last``."""
        now = time.monotonic()
        if self._bar is None and now - self._shown < EVERY and not last:
            return
        self._shown = now
        self._numbers |= {part: numbers for part, file in self._files.items() if (numbers := reported(file))}
        line = self._line(now - self._begun, done, failed)
        if self._bar is not None:
            shares = sum(part.done / part.total if part.total else 1.0 for part in self._numbers.values())
            self._bar.update(self._task, completed=self._complete + max(done, shares), description=line)
        else:
            print(line, file=sys.stderr, flush=True)

    def _line(self, seconds: float, done: int, failed: int) -> str:
        count, parts = len(self._files) + self._complete, self._numbers.values()
        running = max(0, len(parts) - done - failed)
        states = f"{self._complete + done:,} of {count:,} parts"
        states += f", {running:,} running" * bool(running) + f", {failed:,} failed" * bool(failed)
        if not parts:
            return f"{states}, {seconds:,.0f} s"
        read = sum(part.done for part in parts)
        speed = sum(part.done - part.start for part in parts) / max(seconds, 1e-9)
        # Parts are alike in size: those that have not begun are taken as the others.
        total = sum(part.total for part in parts) / len(parts) * len(self._files)
        left = f", {(total - read) / speed:,.0f} s left" if speed and read < total else ""
        numbers = f"{read / 1e6:,.1f} of {total / 1e6:,.1f} MB, {speed / 1e6:,.1f} MB/s, {seconds:,.0f} s"
        return f"{states}: {numbers}{left}"
