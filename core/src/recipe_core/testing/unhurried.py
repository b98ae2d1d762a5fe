"""The watch over ranks under test, told apart from how fast the machine is and what else runs on it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from recipe_core.launch.watch import heartbeat
from recipe_core.launch.watch.watchdog import Watchdog


def watch_from(file: Path) -> None:
    """Have the watchdogs of this process and its forks count no time before ``file`` exists.

    How long ranks take to start and to reach a fault is the machine's affair; how long they outlive it is the run's.
    """
    stuck = Watchdog._stuck

    def patient(self: Watchdog, passed: float) -> str | None:
        return stuck(self, passed if file.exists() else 0.0)

    setattr(Watchdog, "_stuck", patient)  # noqa: B010 - which mypy would not let be assigned


def measure_own_time() -> None:
    """Have the steps of this process and its forks measured without the time in which a thread waits for a core."""
    setattr(heartbeat, "time", SimpleNamespace(monotonic=_own_time))  # noqa: B010


def _own_time() -> float:
    with suppress(OSError, IndexError):  # Linux: nanoseconds on a core, of waiting for one, and turns
        return time.monotonic() - int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return time.monotonic()
