"""The supervisor's check for a run whose ranks are all silent. Imports no torch.

Native code that holds Python's global lock also blocks a rank's watchdog. If that happens to all ranks, only the
supervisor can end the run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from recipe_core.launch.host import process_counters
from recipe_core.launch.watch.heartbeat_files import HeartbeatFiles, RankStatus

INTERVAL = 2.0
"""Seconds between two checks."""
_EXIT_MARGIN = 10.0
"""Seconds after ``train.timeout`` that the ranks have to end by themselves."""


class StallDetector:
    """Watches the heartbeats of ``processes`` ranks in the folder ``logs``."""

    def __init__(self, logs: Path, processes: int) -> None:
        self._files = HeartbeatFiles(logs, -1, processes)  # -1: this process is none of them
        self._checked = time.monotonic()

    def check(self, running: Mapping[int, int]) -> str | None:
        """Return a message once all running ranks are silent for longer than ``train.timeout``, else None.

        Stopped ranks (SIGSTOP) do not count as silent: they may be continued.

        Args:
            running: process ids by rank.
        """
        now = time.monotonic()
        if now - self._checked < INTERVAL:
            return None
        self._checked = now
        self._files.refresh(2 * INTERVAL)
        statuses = {rank: self._files.statuses[rank] for rank in running}
        if any(_is_stopped(pid) for pid in running.values()):
            for status in statuses.values():
                status.silent = 0.0
        if not statuses or not all(_is_silent(status, running[rank]) for rank, status in statuses.items()):
            return None
        seconds = min(status.silent for status in statuses.values())
        return (
            f"no rank has given a sign of life for {seconds:.0f} s: their interpreters are blocked by native code, or "
            "the disk of the run folder hangs; their logs hold the Python stacks"
        )

    def prints_stacks(self, rank: int, pid: int) -> bool:
        """True if SIGQUIT makes the process print its Python stacks; it would kill any other process."""
        self._files.refresh(0.0)
        record = self._files.statuses[rank].record
        return record is not None and record.get("pid") == pid and hasattr(signal, "SIGQUIT")


def _is_silent(status: RankStatus, pid: int) -> bool:
    record = status.record
    return (
        record is not None
        and record.get("pid") == pid
        and status.silent > float(record.get("timeout", 0)) + _EXIT_MARGIN
    )


def _is_stopped(pid: int) -> bool:
    with suppress(OSError, IndexError):
        return process_counters(pid)[0] in "Tt"
    return False
