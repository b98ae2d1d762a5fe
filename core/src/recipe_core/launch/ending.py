"""The reason why the last start of a run ended, and if it should be started again. Imports no torch.

Our supervisor writes the reason into ``launch/ending.json``. Under torchrun and srun, where no process sees all ranks,
each rank writes it with its last heartbeat into ``logs/rank-N.beat.json``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from recipe_core.errors import DiskError, ExitCode
from recipe_core.files import write_text
from recipe_core.files.documents import parse_json, read_record
from recipe_core.launch.failures import Failure, first_line
from recipe_core.launch.host import host

FILE = Path("launch") / "ending.json"
Kind = Literal["finished", "finding", "mistake", "diverged", "hung", "bug", "disk", "stopped", "lost", "killed"]
KINDS: dict[int, Kind] = {
    ExitCode.FINISHED: "finished",
    ExitCode.FINDING: "finding",
    ExitCode.MISTAKE: "mistake",
    ExitCode.DIVERGED: "diverged",
    ExitCode.HUNG: "hung",
    ExitCode.BUG: "bug",
    ExitCode.DISK_FULL: "disk",
    ExitCode.STOPPED: "stopped",
}
"""The kind that each of our exit codes stands for."""
AGAIN: tuple[Kind, ...] = ("stopped", "lost", "killed", "hung")
"""After these, the same command continues from the last checkpoint."""
_OUTSIDE: tuple[Kind, ...] = ("hung", "lost", "stopped")
"""Kinds that other ranks cause, the strongest first: any other kind comes before them, as the cause."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one start of a run."""

    kind: str
    """A :data:`Kind`."""
    exit_code: int
    message: str
    """The reason in one paragraph, as the user has read it."""
    rank: int | None = None
    """The rank that is the cause; None: none, or unknown."""
    host: str = ""
    step: int | None = None
    """The step that this rank was in."""
    activity: str = ""
    """The activity of this rank: ``loader``, ``backward``, ..."""
    time: float = 0.0
    """Seconds since the epoch."""

    @property
    def again(self) -> bool:
        """True if the same command may continue the run."""
        return self.kind in AGAIN

    def line(self) -> str:
        """Return a summary in one line."""
        where = "" if self.rank is None else f"rank {self.rank}{f' on {self.host}' if self.host else ''}: "
        first = first_line(self.message)
        at = f" (in {self.activity!r}{f' of step {self.step}' if self.step else ''})" if self.activity else ""
        return f"{self.kind}: {where}{first}{'' if repr(self.activity) in first else at}"


def kind_of(exit_code: int) -> Kind:
    """Return the kind for an exit code, if nothing else is known."""
    return KINDS.get(exit_code, "killed" if exit_code > 128 or exit_code < 0 else "bug")


def record_ending(out: Path, ending: Ending) -> None:
    """Write the end of a run that a supervisor started; a full disk is ignored."""
    with suppress(DiskError, OSError):
        (out / FILE).parent.mkdir(exist_ok=True)
        write_text(out / FILE, json.dumps(asdict(ending), indent=2) + "\n")


def record_failure_ending(out: Path, failure: Failure, rank: int | None = None) -> None:
    """Write the end of a run whose first failure was that of ``rank``; the cause of a hang is in the heartbeats."""
    kind = "lost" if failure.lost_peer else kind_of(failure.exit_code)
    cause = None if kind in _OUTSIDE else rank
    where = host() if cause is not None else ""
    record_ending(
        out,
        Ending(
            kind=kind, exit_code=failure.exit_code, message=failure.message, rank=cause, host=where,
            time=max(failure.time, time.time()),
        ),
    )  # fmt: skip


def read_ending(out: Path, since: float) -> Ending | None:
    """Return the end of the start that began at ``since`` (seconds since the epoch); None if nothing recorded it.

    It is the end of the rank that failed first by itself, else the diagnosis of the rank that the others waited for.
    """
    recorded = read_record(out / FILE, Ending)
    ends = [recorded] if recorded is not None and recorded.time >= since else []
    records = dict(_records(out, since))
    for rank, record in sorted(records.items()):
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # a damaged record
            ends += _rank_endings(rank, record, records)
    causes = [ending for ending in ends if ending.kind not in _OUTSIDE]
    if causes:
        return min(causes, key=lambda ending: ending.time)
    return min(ends, key=lambda ending: (_OUTSIDE.index(ending.kind), ending.rank is None), default=None)


def _records(out: Path, since: float) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The last heartbeat of each rank that has written one since then."""
    for path in out.glob("logs/rank-*.beat.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            record = parse_json(path.read_bytes())
            if record["time"] >= since:
                yield int(record["rank"]), record


def _rank_endings(rank: int, record: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]]) -> Iterator[Ending]:
    ended = record.get("ended")
    if not ended:
        return
    code, diagnosis = int(ended["code"]), ended.get("verdict")
    if code == ExitCode.FINISHED:  # or stopped in good order: see results.json
        return
    if diagnosis is None:
        cause: int | None = None if code == ExitCode.STOPPED else rank
        yield _ending(kind_of(code), code, str(ended.get("message") or ended["text"]), cause, record, record)
        return
    kind: Kind = "lost" if diagnosis["lost"] else "hung"
    first = int(diagnosis["ranks"][0])
    last = records.get(first) or {"host": next(iter(diagnosis["hosts"]), "")}  # a rank that never came
    yield _ending(kind, code, str(diagnosis["text"]), first, last, record)


def _ending(
    kind: Kind, code: int, message: str, cause: int | None, last: Mapping[str, Any], record: Mapping[str, Any]
) -> Ending:
    lane = (last.get("lanes") or {}).get("main") or {}
    known = cause is not None
    return Ending(
        kind=kind,
        exit_code=code,
        message=message,
        rank=cause,
        host=str(last.get("host", "")) if known else "",
        step=lane.get("step") if known else None,
        activity=str(lane.get("name", "")) if known else "",
        time=float(record.get("time", 0.0)),
    )
