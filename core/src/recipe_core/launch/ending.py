"""Why the last start of a run ended, and whether it is to be started again: one answer for all who ask. No torch here.

What found the cause has said so by then: our supervisor in ``launch/ending.json``, and under torchrun and srun, where
nobody sees all ranks, each rank with its last heartbeat in ``logs/rank-N.beat.json``.
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
"""What an exit code of ours says."""
AGAIN: tuple[Kind, ...] = ("stopped", "lost", "killed", "hung")
"""After these the same line goes on from the last checkpoint; whether it gets further, the next start will show."""
_OUTSIDE: tuple[Kind, ...] = ("hung", "lost", "stopped")
"""What a rank suffers from others, the strongest first: any other ending of a rank comes before, as the cause."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The end of one start of a run."""

    kind: str
    """A :data:`Kind`."""
    exit_code: int
    message: str
    """Why, in one paragraph: what the user was told."""
    rank: int | None = None
    """The rank that is the cause; None: none, or not known."""
    host: str = ""
    step: int | None = None
    """The step that this rank was in."""
    activity: str = ""
    """What it was doing: ``loader``, ``backward``, ..."""
    time: float = 0.0
    """Seconds since the epoch."""

    @property
    def again(self) -> bool:
        """True if the same line may go on."""
        return self.kind in AGAIN

    def line(self) -> str:
        """All of it in one line."""
        where = "" if self.rank is None else f"rank {self.rank}{f' on {self.host}' if self.host else ''}: "
        first = first_line(self.message)
        at = f" (in {self.activity!r}{f' of step {self.step}' if self.step else ''})" if self.activity else ""
        return f"{self.kind}: {where}{first}{'' if repr(self.activity) in first else at}"


def kind_of(exit_code: int) -> Kind:
    """The kind of an end that only its exit code tells."""
    return KINDS.get(exit_code, "killed" if exit_code > 128 or exit_code < 0 else "bug")


def record_ending(out: Path, ending: Ending) -> None:
    """Write the end of a run that a supervisor started; a full disk does no harm."""
    with suppress(DiskError, OSError):
        (out / FILE).parent.mkdir(exist_ok=True)
        write_text(out / FILE, json.dumps(asdict(ending), indent=2) + "\n")


def record_failure_ending(out: Path, failure: Failure, rank: int | None = None) -> None:
    """Write the end of a run whose first failure was that of ``rank``; of a hang, the ranks know the cause."""
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
    """The end of the start that began at ``since`` (seconds since the epoch); None where nobody said why.

    It is that of the rank which failed first by itself, else what the others were told of the one they waited for.
    """
    told = read_record(out / FILE, Ending)
    ends = [told] if told is not None and told.time >= since else []
    records = dict(_records(out, since))
    for rank, record in sorted(records.items()):
        with suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # a damaged record
            ends += _of_rank(rank, record, records)
    causes = [one for one in ends if one.kind not in _OUTSIDE]
    if causes:
        return min(causes, key=lambda one: one.time)
    return min(ends, key=lambda one: (_OUTSIDE.index(one.kind), one.rank is None), default=None)


def _records(out: Path, since: float) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The last heartbeat of each rank that has beaten since then."""
    for path in out.glob("logs/rank-*.beat.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            record = parse_json(path.read_bytes())
            if record["time"] >= since:
                yield int(record["rank"]), record


def _of_rank(rank: int, record: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]]) -> Iterator[Ending]:
    """The end of one rank, if it had one, as it tells it."""
    ended = record.get("ended")
    if not ended:
        return
    code, verdict = int(ended["code"]), ended.get("verdict")
    if code == ExitCode.FINISHED:  # or stopped in good order: results.json tells
        return
    if verdict is None:
        cause: int | None = None if code == ExitCode.STOPPED else rank
        yield _ending(kind_of(code), code, str(ended.get("message") or ended["text"]), cause, record, record)
        return
    kind: Kind = "lost" if verdict["lost"] else "hung"
    first = int(verdict["ranks"][0])
    last = records.get(first) or {"host": next(iter(verdict["hosts"]), "")}  # one that never came
    yield _ending(kind, code, str(verdict["text"]), first, last, record)


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
