"""The files through which the ranks of a run read each other's heartbeats: one for each rank, in the run folder.

All ranks see the run folder anyway, and it works when nothing else does: before the ranks have met, while a collective
is stuck, when the link between two hosts is cut, and when the host of rank 0 is lost. Imports no torch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.files.documents import parse_json
from recipe_core.launch.host import host
from recipe_core.launch.slurm_nodes import host_of

Record = Mapping[str, Any]
"""The JSON record that a rank writes with each heartbeat; ``docs/reference/run-folder.md`` lists the fields."""
DIAGNOSIS_FILE = Path("launch") / "verdict"
"""In the run folder: the diagnosis of the last start that hung or lost a rank."""
_FIELDS: dict[str, tuple[type, ...]] = {
    "rank": (int,), "world_size": (int,), "host": (str,), "pid": (int,), "process": (str,), "beat": (int,),
    "time": (int, float), "timeout": (int, float), "lanes": (dict,), "steps": (int,), "work_seconds": (int, float),
    "ended": (dict, type(None)),
}  # fmt: skip
"""The fields that readers require, with their types."""


@dataclass
class RankStatus:
    """The status of a rank, as another rank reads it from the heartbeat files."""

    record: Record | None = None
    """Its newest record; None if it has written none."""
    expected: str = ""
    """The host on which its launcher starts it; empty if unknown."""
    joined: bool = False
    """Its record belongs to this run, not to an earlier one: it changed since shortly before this rank began to read,
    or it reports a failure in the same start of a launcher."""
    silent: float = 0.0
    """Seconds in which this rank read the file and found no new heartbeat."""
    last_read: float | None = None
    """``time.monotonic`` at the last read; None: never."""
    exited: bool = False
    """It ran on this host, and its process no longer exists."""


class HeartbeatFiles:
    """The files ``rank-N.beat.json`` of a folder.

    Args:
        folder: of the files; created if missing.
        rank: of this process.
        world_size: number of ranks; files of higher ranks are of an earlier run, and ignored.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder, self.rank = folder, rank
        self.statuses = {number: RankStatus(expected=host_of(number, os.environ)) for number in range(world_size)}
        self._began: float | None = None
        """Time of the first heartbeat by the clock of the file server, which also dates the other ranks' files."""
        self._start = start_of(os.environ)

    def path(self, rank: int) -> Path:
        """Return the file of a rank."""
        return self.folder / f"rank-{rank}.beat.json"

    def write(self, record: Record) -> None:
        """Write this rank's record in place: a rename with each heartbeat would burden a file server.

        Raises:
            OSError: it cannot be written.
        """
        path, data = self.path(self.rank), json.dumps(record).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, data)
            os.ftruncate(descriptor, len(data))
            if self._began is None:
                self._began = os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)

    def write_diagnosis(self, text: str) -> None:
        """Write the diagnosis for the script of a batch system, which ends ranks that cannot end themselves.

        Raises:
            OSError: it cannot be written.
        """
        path = self.folder.parent / DIAGNOSIS_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")

    def refresh(self, limit: float, ranks: Iterable[int] | None = None) -> None:
        """Read the records of ``ranks`` (None: all others); one read adds at most ``limit`` seconds of silence.

        If this process was stopped, or its machine slept, the time since the last read says nothing about the others.
        """
        for rank in self.statuses if ranks is None else ranks:
            if rank == self.rank:
                continue
            status, now = self.statuses[rank], time.monotonic()
            passed = 0.0 if status.last_read is None else min(limit, now - status.last_read)
            status.last_read = now
            newest, dated = self._read_record(rank)
            if newest is None or (status.record is not None and _same(newest, status.record)):
                status.silent += passed
                status.exited = status.record is not None and _has_exited(status.record)
                continue
            first = status.record is None
            status.record, status.silent = newest, 0.0
            dated_since = self._began is not None and dated >= self._began
            status.joined = status.joined or not first or dated_since or self._failed_early(newest)

    def _failed_early(self, record: Record) -> bool:
        # A rank of this very start ended before its first heartbeat, perhaps before this rank began to read.
        return bool(self._start and record["ended"]) and (record.get("start"), record["beat"]) == (self._start, 1)

    def _read_record(self, rank: int) -> tuple[Record | None, float]:
        # The record and the date of its file; None if there is none, or a half-written or foreign one.
        with suppress(OSError, ValueError), self.path(rank).open("rb") as file:
            dated = os.fstat(file.fileno()).st_mtime  # first: a write after it must not date the record before it
            record = parse_json(file.read())
            if isinstance(record, dict) and all(isinstance(record.get(k), kinds) for k, kinds in _FIELDS.items()):
                return record, dated
        return None, 0.0


def start_of(environment: Mapping[str, str]) -> str:
    """Return an id that all ranks of one start share, and no other start has; empty if the launcher gives none."""
    for names in (
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ):
        if names[0] in environment:
            return "-".join(environment.get(name, "0") for name in names)
    return ""


def write_early_failure(logs: Path, rank: int, world_size: int, code: int, message: str) -> None:
    """Write the heartbeat of a rank that failed before it met the others; a full disk is ignored."""
    text = f"has failed before it met the others: {message}"
    record = {
        "rank": rank, "world_size": world_size, "host": host(), "pid": os.getpid(), "beat": 1,
        "process": f"{host()}-{os.getpid()}-{time.time_ns()}", "time": time.time(),
        "timeout": 0.0, "start": start_of(os.environ), "lanes": {}, "steps": 0, "work_seconds": 0.0,
        "ended": {"code": code, "text": text, "message": message},
    }  # fmt: skip
    with suppress(OSError):
        HeartbeatFiles(logs, rank, world_size).write(record)


def _same(first: Record, second: Record) -> bool:
    return all(first.get(key) == second.get(key) for key in ("process", "beat"))


def _has_exited(record: Record) -> bool:
    # A zombie, which waits for its parent, counts as alive.
    if os.name != "posix" or record.get("host") != host():  # Windows has no signal 0
        return False
    try:
        os.kill(int(record["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, ValueError):
        pass
    return False
