"""Local ranks as their supervisor sees them on the board: those that can say nothing themselves. Imports no torch.

A rank whose interpreter is blocked by native code, which keeps Python's lock, has no watchdog any more. Where all ranks
are, nobody is left to end the run but the supervisor.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from recipe_core.launch.watch.board import Board, Sight

INTERVAL = 2.0
"""Seconds between two looks."""
_MORE = 10.0
"""Seconds after ``train.timeout`` in which a rank may end by itself."""


class Silence:
    """Watches the heartbeats of ``processes`` ranks in the folder ``logs``."""

    def __init__(self, logs: Path, processes: int) -> None:
        self._board = Board(logs, -1, processes)  # -1: this process is none of them
        self._looked = time.monotonic()

    def look(self, running: Mapping[int, int]) -> str | None:
        """A text once all running ranks (their process ids, by rank) are silent for longer than ``train.timeout``.

        Ranks that are stopped (SIGSTOP) are not: who stopped all of them will let them go on.
        """
        now = time.monotonic()
        if now - self._looked < INTERVAL:
            return None
        self._looked = now
        self._board.look(2 * INTERVAL)
        sights = {rank: self._board.sights[rank] for rank in running}
        if any(_is_stopped(pid) for pid in running.values()):
            for sight in sights.values():
                sight.silent = 0.0
        if not sights or not all(_is_over(sight, running[rank]) for rank, sight in sights.items()):
            return None
        seconds = min(sight.silent for sight in sights.values())
        return (
            f"no rank has given a sign of life for {seconds:.0f} s: their interpreters are blocked by native code, or "
            "the disk of the run folder hangs; their logs hold the Python stacks"
        )

    def can_tell(self, rank: int, pid: int) -> bool:
        """True if the process answers SIGQUIT with its Python stacks; another one would die of it."""
        self._board.look(0.0)
        record = self._board.sights[rank].record
        return record is not None and record.get("pid") == pid and hasattr(signal, "SIGQUIT")


def _is_over(sight: Sight, pid: int) -> bool:
    record = sight.record
    return record is not None and record.get("pid") == pid and sight.silent > float(record.get("timeout", 0)) + _MORE


def _is_stopped(pid: int) -> bool:
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False
