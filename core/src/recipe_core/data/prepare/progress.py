"""Progress of a preparation: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

EVERY = 10.0
"""Seconds between lines without a terminal."""
_REPORTED = 1.0
"""Seconds between the numbers in the file of :func:`report_to`."""
_file: Path | None = None


def report_to(file: Path) -> None:
    """Have the bars of this process write their numbers into ``file``, for another process; see :func:`reported`."""
    global _file
    _file = file


class Reported(NamedTuple):
    """The numbers of a bar, in bytes."""

    start: int
    """Completed by an earlier run."""
    done: int
    total: int


def reported(file: Path) -> Reported | None:
    """Return the numbers in the file of :func:`report_to`; None without any."""
    try:
        return Reported(*map(int, file.read_text(encoding="ascii").split()))
    except (OSError, ValueError, TypeError):  # also while it is written
        return None


class ProgressBar:
    """Shows completed bytes of ``total``, MB/s and remaining time on standard error, unless ``visible`` is false."""

    def __init__(self, what: str, total: int, *, visible: bool = True) -> None:
        self.what, self.total, self._visible = what, total, visible
        self._began = self._shown = time.monotonic()
        self._reported = 0.0
        self._start = self._done = 0
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        if self._visible and sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(self.what, total=self.total)
        self._report(self._began)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._report(time.monotonic())
        if self._bar is not None:
            self._bar.stop()
        elif self._visible and kind is None:
            self._line(time.monotonic())

    def start_at(self, done: int) -> None:
        """Set the bytes that an earlier run has completed; they do not count for the speed."""
        self._start = self._done = done

    def update(self, done: int) -> None:
        """Set the number of completed bytes."""
        self._done = done
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=done)
        elif self._visible and now - self._shown >= EVERY:
            self._line(now)
        if now - self._reported >= _REPORTED:
            self._report(now)

    def _report(self, now: float) -> None:
        self._reported = now
        if _file is not None:
            with suppress(OSError):  # only the progress is lost
                _file.write_text(f"{self._start} {self._done} {self.total}", encoding="ascii")

    def _line(self, now: float) -> None:
        self._shown = now
        seconds = max(now - self._began, 1e-9)
        speed = (self._done - self._start) / seconds
        share = self._done / self.total if self.total else 1.0
        left = f", {(self.total - self._done) / speed:,.0f} s left" if speed and self._done < self.total else ""
        print(
            f"{self.what}: {self._done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB ({share:.0%}), "
            f"{speed / 1e6:,.1f} MB/s, {seconds:,.0f} s{left}",
            file=sys.stderr, flush=True,
        )  # fmt: skip


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=Console(stderr=True))
