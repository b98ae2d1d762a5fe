"""Tests of the watchdog, independent of the speed and load of the machine."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from recipe_core.launch.watch import heartbeat
from recipe_core.launch.watch.watchdog import Watchdog


def watch_from(file: Path) -> None:
    """Make the watchdogs of this process and its forks count no time before ``file`` exists.

    The time until ranks reach a fault depends on the machine; the time that they outlive it is under test.
    """
    stuck = Watchdog._stuck_lane

    def patient(self: Watchdog, passed: float) -> str | None:
        return stuck(self, passed if file.exists() else 0.0)

    setattr(Watchdog, "_stuck_lane", patient)  # noqa: B010 - mypy rejects the assignment


def measure_own_time() -> None:
    """Measure steps of this process and its forks without the time in which a thread waits for a core."""
    setattr(heartbeat, "time", SimpleNamespace(monotonic=_own_time))  # noqa: B010


def _own_time() -> float:
    with suppress(OSError, IndexError):  # Linux: nanoseconds on a core, nanoseconds of waiting for one, time slices
        return time.monotonic() - int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.monotonic()
