"""The board on which the ranks of a run see each other's heartbeats: a file of each rank in the run folder.

The run folder is the one thing that all ranks must see anyway, and it works where nothing else does: before the ranks
have met, while a collective is stuck, when the link between two hosts is cut, and when the host of rank 0 is lost.
Imports no torch.
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
"""Layout of the record that a rank writes with each beat; ``docs/reference/run-folder.md`` has the fields."""
VERDICT = Path("launch") / "verdict"
"""In the run folder: whom the last start that hung, or lost a rank, waited for."""
_FIELDS: dict[str, tuple[type, ...]] = {
    "rank": (int,), "world_size": (int,), "host": (str,), "pid": (int,), "process": (str,), "beat": (int,),
    "time": (int, float), "timeout": (int, float), "lanes": (dict,), "steps": (int,), "work_seconds": (int, float),
    "ended": (dict, type(None)),
}  # fmt: skip
"""What readers rely on."""


@dataclass
class Sight:
    """One rank as another one sees it on the board."""

    record: Record | None = None
    """Its newest record; None where it wrote none."""
    expected: str = ""
    """The host on which its launcher starts it; empty where that is not known."""
    came: bool = False
    """It has beaten since this rank began to look, or shortly before, or left a word in the same start of a launcher:
    its record is of this run, not of an earlier one."""
    silent: float = 0.0
    """Seconds in which this rank looked and saw no new beat."""
    looked: float | None = None
    """When this rank looked last, by ``time.monotonic``; None: never."""
    gone: bool = False
    """It ran on this host, and its process is not there any more."""


class Board:
    """The files ``rank-N.beat.json`` of a folder.

    Args:
        folder: for the files; made if missing.
        rank: of this process.
        world_size: files of ranks above it are of an earlier run, and ignored.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.folder, self.rank = folder, rank
        self.sights = {number: Sight(expected=host_of(number, os.environ)) for number in range(world_size)}
        self._began: float | None = None
        """Time of the first beat, by the clock of the file server, which also dates the other ranks' files."""
        self._start = start_of(os.environ)

    def path(self, rank: int) -> Path:
        """The file of a rank."""
        return self.folder / f"rank-{rank}.beat.json"

    def write(self, record: Record) -> None:
        """Put this rank's record on the board, in place: a new name with each beat would burden a file server.

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

    def note_verdict(self, text: str) -> None:
        """Leave the verdict where the script of a batch system looks for it: ranks that hang cannot end themselves.

        Raises:
            OSError: it cannot be written.
        """
        path = self.folder.parent / VERDICT
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")

    def look(self, most: float, ranks: Iterable[int] | None = None) -> None:
        """Read the records of ``ranks`` (None: all others); a look counts for at most ``most`` seconds of silence.

        A process that was stopped, or a machine that slept, saw nothing in that time: it is not the others' silence.
        """
        for rank in self.sights if ranks is None else ranks:
            if rank == self.rank:
                continue
            sight, now = self.sights[rank], time.monotonic()
            passed = 0.0 if sight.looked is None else min(most, now - sight.looked)
            sight.looked = now
            newest, dated = self._read(rank)
            if newest is None or (sight.record is not None and _same(newest, sight.record)):
                sight.silent += passed
                sight.gone = sight.record is not None and _is_gone(sight.record)
                continue
            first = sight.record is None
            sight.record, sight.silent = newest, 0.0
            dated_since = self._began is not None and dated >= self._began
            sight.came = sight.came or not first or dated_since or self._left_word(newest)

    def _left_word(self, record: Record) -> bool:
        """True if a rank of this very start had ended before it could beat, perhaps before this one began to look."""
        return bool(self._start and record["ended"]) and (record.get("start"), record["beat"]) == (self._start, 1)

    def _read(self, rank: int) -> tuple[Record | None, float]:
        """The record of a rank and the date of its file; None where there is none, or a half-written or foreign one."""
        with suppress(OSError, ValueError), self.path(rank).open("rb") as file:
            dated = os.fstat(file.fileno()).st_mtime  # first: a write after it must not date the record before it
            found = parse_json(file.read())
            if isinstance(found, dict) and all(isinstance(found.get(k), kinds) for k, kinds in _FIELDS.items()):
                return found, dated
        return None, 0.0


def start_of(environment: Mapping[str, str]) -> str:
    """What all ranks of one start have in common, and no other start has; empty where their launcher says nothing."""
    for names in (
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ):
        if names[0] in environment:
            return "-".join(environment.get(name, "0") for name in names)
    return ""


def leave_word(logs: Path, rank: int, world_size: int, code: int, message: str) -> None:
    """Tell the ranks that look for this one that it ends before it could meet them; a full disk does no harm."""
    text = f"has failed before it met the others: {message}"
    record = {
        "rank": rank, "world_size": world_size, "host": host(), "pid": os.getpid(), "beat": 1,
        "process": f"{host()}-{os.getpid()}-{time.time_ns()}", "time": time.time(),
        "timeout": 0.0, "start": start_of(os.environ), "lanes": {}, "steps": 0, "work_seconds": 0.0,
        "ended": {"code": code, "text": text, "message": message},
    }  # fmt: skip
    with suppress(OSError):
        Board(logs, rank, world_size).write(record)


def _same(one: Record, other: Record) -> bool:
    return all(one.get(key) == other.get(key) for key in ("process", "beat"))


def _is_gone(record: Record) -> bool:
    """True if the process ran here and has ended; one that only waits for its parent still counts as there."""
    if os.name != "posix" or record.get("host") != host():  # Windows has no signal 0
        return False
    try:
        os.kill(int(record["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, ValueError):
        pass
    return False
