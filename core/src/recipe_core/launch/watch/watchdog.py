"""Ends a run that hangs, and names the rank that it waits for. Imports no torch.

Threads of every rank. The scribe puts this rank's heartbeat on the board (:mod:`recipe_core.launch.watch.board`);
readers, who may be slower, look at those of the others. All of these may be stuck in a file system. One more never
touches a file: it looks at this rank's own threads, and where one has waited for ``train.timeout`` it has the case
judged (:mod:`recipe_core.launch.watch.verdict`) and ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any

from recipe_core.errors import ConfigError, HungError, LostRankError, RecipeError
from recipe_core.launch import failures
from recipe_core.launch.failures import chain, exit_code, explain, first_line, message_of, record_failure
from recipe_core.launch.host import host
from recipe_core.launch.watch import alert, flight
from recipe_core.launch.watch.board import Board, Sight, start_of
from recipe_core.launch.watch.clerk import Clerk, all_did, all_finished
from recipe_core.launch.watch.heartbeat import LOADER, SAVE, WATCHERS, Activity, Heartbeat, beat, stacks
from recipe_core.launch.watch.pace import Pace
from recipe_core.launch.watch.verdict import MAIN, Case, Verdict, contradiction, known

_LIMITED = (LOADER,)
"""Activities that may not take longer than ``train.timeout`` either, though no other rank waits for them."""
_GRACE = 10.0
"""Seconds that a rank waits for one that has ended."""
_FAREWELL = 2.0
"""Seconds that a rank has to end by itself once another one has found out why the run cannot go on."""
_PATIENCE = 5.0
"""Seconds that the end of a rank waits for a disk or a terminal."""
_READERS = 8
"""Threads, at most, that share the other ranks' files: a file server that takes seconds for a call answers several at
the same time."""
_FEW = 16
"""Ranks of a run whose files are all read at every look. Of more, a reader reads one at a time while all goes well: a
thousand ranks that read a thousand files every few seconds would be a burden of their own."""


def patience(seconds: float) -> float:
    """The limit of a collective for the backend, which names no rank: only where there is no watchdog any more.

    It is long, since the backend counts the time in which all ranks were stopped (a batch system's suspension), too.
    """
    return seconds + 7 * 24 * 3600


class Watchdog:
    """A context manager that watches this rank, from before it meets the others until it has left them.

    Leaving it by an error that tells of a lost rank raises one that names the rank.

    Args:
        logs: folder of the run folder for the ranks' heartbeats, which all ranks see; None: this rank watches alone.
        rank, world_size: of this process.
        timeout: ``train.timeout``, in seconds.
        on_hang: ``train.on_hang``.
        say: takes a line about a slow rank, on rank 0.
        heart: what the threads of this rank say of themselves.
    """

    def __init__(
        self, logs: Path | None, rank: int, world_size: int, timeout: float, on_hang: str | None = None,
        say: Callable[[str], None] = lambda text: None, heart: Heartbeat = beat,
    ) -> None:  # fmt: skip
        self._rank, self._world_size, self._timeout, self._on_hang = rank, world_size, timeout, on_hang
        self._heart = heart
        self._board = Board(logs, rank, world_size) if logs is not None and world_size > 1 else None
        self._interval = max(min(2.0, timeout / 20), 0.1, world_size / 200)
        self._quiet = max(3.0, 4 * self._interval)
        self._pace = Pace(rank, say) if rank == 0 and self._board else None
        self._grace = min(_GRACE, timeout / 2)
        self._process = f"{host()}-{os.getpid()}-{time.time_ns()}"
        self._start = start_of(os.environ)
        self._beats = 0
        self._ages: dict[int, tuple[Activity, float]] = {}
        self._over = 0.0
        """Seconds since another rank was seen to have ended with a verdict."""
        self._ended: dict[str, Any] | None = None
        self._uneasy = False
        """A thread of this rank has been at one thing for longer than a rank that lives is silent."""
        self._ends = False
        """This rank looks for the reason why the run does not go on."""
        self._stop = threading.Event()
        self._scribe = Clerk(f"{WATCHERS}-scribe", self._write, self._interval)
        self._readers = self._all_readers() if self._board else []

    def __enter__(self) -> Watchdog:
        self._heart.reset()
        _answer_with_stacks()
        if self._board is not None:
            for clerk in (self._scribe, *self._readers):
                clerk.start()
        threading.Thread(target=self._watch, name=f"{WATCHERS}-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        named = self._named(error) if error is not None and self._board and _tells_of_a_loss(error) else None
        self._stop.set()
        self._end_record(named or error)
        if named is not None:
            raise named from error

    def row(self) -> dict[str, float]:
        """The slowest rank and its time, for a row of metrics (``train.log_stragglers``); empty where unknown."""
        return self._pace.row() if self._pace is not None else {}

    # The thread that may not block.

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            passed, last = min(now - last, 2 * self._interval), now  # a process that was stopped saw nothing
            stuck, verdict = self._stuck(passed), self._verdict_of_another(passed)
            contrary = contradiction(self._mine(), self._board.sights) if self._board else None
            if self._stop.is_set():
                return
            if contrary is not None:
                self._end(ConfigError(contrary))
            elif verdict is not None:
                self._end(_error(verdict), verdict)
            elif stuck is not None:
                verdict = self._judge(stuck)
                self._end(_error(verdict), verdict)

    def _stuck(self, passed: float) -> str | None:
        """The lane that has come to its limit; ages grow by what this thread saw pass."""
        ages: dict[int, tuple[Activity, float]] = {}
        for number, activity in list(self._heart.activities.items()):
            before, age = self._ages.get(number, (None, 0.0))
            ages[number] = (activity, age + passed if before is activity else 0.0)
        self._ages = ages
        self._uneasy = max((age for _, age in ages.values()), default=0.0) >= self._quiet
        for number, (activity, age) in ages.items():
            bereft = age >= self._grace and self._someone_ended()
            if not bereft and age < self._timeout / 2:
                continue
            waited = age if activity.waits else min(age, self._waited(number))
            if waited >= self._timeout or (bereft and waited >= self._grace):
                return self._lane(number)
            if activity.name in _LIMITED and age >= self._timeout:
                return self._lane(number)
        return None

    def _verdict_of_another(self, passed: float) -> Verdict | None:
        """The verdict of another rank; the thread that trains first gets a while to find out and end by itself."""
        verdict = known(self._board.sights) if self._board else None
        self._over = self._over + passed if verdict is not None else 0.0
        return verdict if self._over > _FAREWELL else None

    def _someone_ended(self) -> bool:
        sights = self._board.sights.values() if self._board else ()
        return any(sight.came and (sight.record or {}).get("ended") for sight in sights)

    def _judge(self, lane: str) -> Verdict:
        # What is judged must have been seen since: a server that takes its time gets a part of what was waited already.
        fresh = self._refresh(max(_PATIENCE, self._timeout / 4))
        board = self._board
        sights = dict(board.sights) if board else {self._rank: Sight()}
        verdict = Case(
            rank=self._rank, mine=self._record(), sights=sights, lane=lane, timeout=self._timeout, quiet=self._quiet
        ).judge()
        if board is None or fresh:
            return verdict
        text = (
            f"{verdict.text}\nThe run folder does not answer this rank either ({board.folder}): what it knows of the "
            "others may be old"
        )
        return replace(verdict, text=text)

    def _refresh(self, seconds: float) -> bool:
        """Have this rank's heartbeat written and all others read, now; True if that was done within so many seconds."""
        self._ends = True
        return self._board is None or all_did((self._scribe, *self._readers), seconds)

    def _end(self, error: RecipeError, verdict: Verdict | None = None) -> None:
        """Tell why, and end this process, whatever its other threads are in."""
        self._ended = self._ending(error, verdict)
        if self._board is not None:
            all_did([self._scribe], _PATIENCE)
        complaint = self._alarm(verdict) if verdict is not None else None
        telling = threading.Thread(target=self._tell, args=(error, complaint), name=f"{WATCHERS}-tell", daemon=True)
        telling.start()
        telling.join(_PATIENCE)  # a log on a disk that hangs
        os._exit(exit_code(error))

    def _tell(self, error: RecipeError, complaint: str | None) -> None:
        if complaint:
            print(f"warning: {complaint}", file=sys.stderr, flush=True)
        if sys.stdout.isatty() or os.environ.get("RECIPE_TERMINAL"):
            print("\x1b[?25h", flush=True)  # the progress bar's line may be open and the cursor hidden
        if not record_failure(error):
            name = f"recipe run (rank {self._rank})" if self._world_size > 1 else "recipe run"
            print(f"{name}: {error}", file=sys.stderr, flush=True)

    def _alarm(self, verdict: Verdict) -> str | None:
        if self._on_hang is None or verdict.speaker != self._rank:
            return None
        details = {
            "RECIPE_HANG_RANKS": ",".join(map(str, verdict.ranks)),
            "RECIPE_HANG_HOSTS": ",".join(filter(None, verdict.hosts)),
            "RECIPE_HANG_KIND": "lost" if verdict.lost else "hung",
            "RECIPE_HANG_STEP": str(self._heart.step),
            "RECIPE_HANG_MESSAGE": verdict.text,
            "RECIPE_HANG_LOGS": str(self._board.folder.absolute()) if self._board else "",
        }
        return alert.run(self._on_hang, details)

    # The threads that write and read.

    def _write(self) -> None:
        assert self._board is not None
        record = self._record()
        with suppress(OSError):  # a full disk: the others see this rank as silent, no more
            self._board.write(record)
            if self._start and (verdict := (record["ended"] or {}).get("verdict")):
                self._board.note_verdict(verdict["text"])
        if self._pace is not None:
            others = {rank: sight.record for rank, sight in self._board.sights.items()}
            self._pace.look({**others, self._rank: record})

    def _all_readers(self) -> list[Clerk]:
        """Readers of up to eight other ranks each, and of more where there would be more than eight readers."""
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        number = min(_READERS, -(-len(others) // _READERS))
        shares = [others[first::number] for first in range(number)]
        return [Clerk(f"{WATCHERS}-reader", self._reading(share), self._interval) for share in shares]

    def _reading(self, share: Sequence[int]) -> Callable[[], None]:
        """The job of a reader: one file of its share while all goes well, all of it where something may be wrong."""
        board, turns = self._board, cycle(share)
        assert board is not None

        def read() -> None:
            everyone = self._uneasy or self._ends or self._world_size <= _FEW
            board.look(2 * self._interval, share if everyone else [next(turns)])

        return read

    def _record(self) -> dict[str, Any]:
        self._beats += 1
        now, ages = time.monotonic(), dict(self._ages)
        lanes = {}
        for number, activity in list(self._heart.activities.items()):
            seen, age = ages.get(number, (None, 0.0))
            seconds = age if seen is activity else min(now - activity.since, 2 * self._interval)
            lanes[self._lane(number)] = {**activity._asdict(), "seconds": round(seconds, 1)}
            del lanes[self._lane(number)]["since"]
        under_way: list[dict[str, Any]] = []
        if any(lane["seconds"] >= self._timeout / 2 for lane in lanes.values()):  # asking takes up to 60 ms
            under_way = flight.pending()
            if MAIN in lanes:
                lanes[MAIN]["waits"] |= self._waited(self._heart.main, under_way) > 0
        return self._mine() | {
            "pid": os.getpid(), "process": self._process, "start": self._start, "beat": self._beats,
            "time": time.time(), "timeout": self._timeout, "lanes": lanes, "steps": self._heart.work.steps,
            "work_seconds": self._heart.work.seconds, "pending": under_way, "stacks": stacks(), "ended": self._ended,
        }  # fmt: skip

    def _mine(self) -> dict[str, Any]:
        return {"rank": self._rank, "world_size": self._world_size, "host": host()}

    def _lane(self, number: int) -> str:
        return MAIN if number == self._heart.main else SAVE

    def _waited(self, number: int, pending: list[dict[str, Any]] | None = None) -> float:
        """Seconds since a thread began the oldest collective under way, as PyTorch's flight recorder knows it.

        What threads began that say nothing of themselves (those of the autograd engine) counts for the main thread.
        """
        others = self._heart.activities.keys() - {number}
        for one in flight.pending() if pending is None else pending:
            if one["thread"] == number or (number == self._heart.main and one["thread"] not in others):
                return float(one["seconds"])
        return 0.0

    # The end of the thread that trains.

    def _named(self, error: BaseException) -> RecipeError:
        """The error that names the rank which ``error`` only tells to be lost; it waits for its silence to show."""
        deadline = time.monotonic() + self._quiet + 2 * self._interval
        board = self._board
        assert board is not None
        while True:
            self._refresh(_PATIENCE)
            case = Case(
                rank=self._rank, mine=self._record(), sights=dict(board.sights), lane=MAIN, timeout=self._timeout,
                quiet=self._quiet,
            )  # fmt: skip
            if case.someone_lost() or time.monotonic() > deadline:
                break
            time.sleep(self._interval)
        verdict = case.judge() if case.someone_lost() else None
        if verdict is None:
            explained = explain(error) or error
            return explained if isinstance(explained, RecipeError) else LostRankError(str(explained))
        named = _error(verdict)
        self._ended = self._ending(named, verdict)
        if complaint := self._alarm(verdict):
            print(f"warning: {complaint}", file=sys.stderr, flush=True)
        return named

    def _end_record(self, error: BaseException | None) -> None:
        """Put the end of this rank on the board."""
        self._ended = self._ended or self._ending(error, None)
        if self._board is not None:
            all_finished((self._scribe, *self._readers), _PATIENCE)

    def _ending(self, error: BaseException | None, verdict: Verdict | None) -> dict[str, Any]:
        if error is None:
            return {"code": 0, "text": "has ended as if the run were over"}
        code = exit_code(error)
        message = first_line(message_of(error))
        text = f"has failed: {message}"
        if isinstance(error, SystemExit):
            text = f"has ended with exit code {code} before the run was over"
        ended: dict[str, Any] = {"code": code, "text": text, "message": message}
        if verdict is not None:
            ended["verdict"] = asdict(verdict)
        return ended


def _answer_with_stacks() -> None:
    """Have SIGQUIT print all Python stacks, for our supervisor, which asks so; native code cannot keep it from that.

    Under other launchers the signal ends the process, as Ctrl-\\ at a terminal means it.
    """
    if failures.FILE in os.environ and hasattr(signal, "SIGQUIT"):
        with suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr, or none with a descriptor
            faulthandler.register(signal.SIGQUIT, all_threads=True)


def _error(verdict: Verdict) -> RecipeError:
    return LostRankError(verdict.text) if verdict.lost else HungError(verdict.text)


def _tells_of_a_loss(error: BaseException) -> bool:
    return any(isinstance(one, LostRankError) or isinstance(explain(one), LostRankError) for one in chain(error))
