"""Ends a run that hangs, and names the rank that it waits for. Imports no torch.

Two threads of every rank. One puts this rank's heartbeat on the board (:mod:`recipe_core.launch.watch.board`) and reads
those of the others; it may be stuck in a file system. The other never touches a file: it looks at this rank's own
threads, and where one has waited for ``train.timeout`` it has the case judged
(:mod:`recipe_core.launch.watch.verdict`) and ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from recipe_core.errors import ConfigError, HungError, LostRankError, RecipeError
from recipe_core.launch import failures
from recipe_core.launch.failures import chain, exit_code, explain, record_failure
from recipe_core.launch.host import host
from recipe_core.launch.watch import alert, flight
from recipe_core.launch.watch.board import Board, Sight, start_of
from recipe_core.launch.watch.heartbeat import LOADER, SAVE, WATCHERS, Activity, beat, stacks
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
    """

    def __init__(
        self, logs: Path | None, rank: int, world_size: int, timeout: float, on_hang: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self._rank, self._world_size, self._timeout, self._on_hang = rank, world_size, timeout, on_hang
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
        self._stop = threading.Event()
        self._wake = threading.Event()
        """Set for the scribe to write at once."""
        self._written = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Watchdog:
        beat.reset()
        _answer_with_stacks()
        targets = {"scribe": self._scribe, "watch": self._watch} if self._board else {"watch": self._watch}
        for name, target in targets.items():
            thread = threading.Thread(target=target, name=f"{WATCHERS}-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
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
        for number, activity in list(beat.activities.items()):
            before, age = self._ages.get(number, (None, 0.0))
            ages[number] = (activity, age + passed if before is activity else 0.0)
        self._ages = ages
        for number, (activity, age) in ages.items():
            bereft = age >= self._grace and self._someone_ended()
            if not bereft and age < self._timeout / 2:
                continue
            waited = age if activity.waits else min(age, _waited(number))
            if waited >= self._timeout or (bereft and waited >= self._grace):
                return _lane(number)
            if activity.name in _LIMITED and age >= self._timeout:
                return _lane(number)
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
        self._write_soon()
        board = self._board
        sights = dict(board.sights) if board else {self._rank: Sight()}
        verdict = Case(
            rank=self._rank, mine=self._record(), sights=sights, lane=lane, timeout=self._timeout, quiet=self._quiet
        ).judge()
        if board is None or self._written.is_set():
            return verdict
        text = (
            f"{verdict.text}\nThe run folder does not answer this rank either ({board.folder}): what it knows of the "
            "others may be old"
        )
        return replace(verdict, text=text)

    def _write_soon(self) -> None:
        """Have the scribe write and read now, and wait for it for a while."""
        if self._board is not None:
            self._written.clear()
            self._wake.set()
            self._written.wait(_PATIENCE)

    def _end(self, error: RecipeError, verdict: Verdict | None = None) -> None:
        """Tell why, and end this process, whatever its other threads are in."""
        self._ended = self._ending(error, verdict)
        self._write_soon()
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
            "RECIPE_HANG_STEP": str(beat.step),
            "RECIPE_HANG_MESSAGE": verdict.text,
            "RECIPE_HANG_LOGS": str(self._board.folder.absolute()) if self._board else "",
        }
        return alert.run(self._on_hang, details)

    # The thread that writes and reads.

    def _scribe(self) -> None:
        assert self._board is not None
        while True:
            record = self._record()
            with suppress(OSError):  # a full disk: the others see this rank as silent, no more
                self._board.write(record)
                if self._start and (verdict := (record["ended"] or {}).get("verdict")):
                    self._board.note_verdict(verdict["text"])
            self._board.look(2 * self._interval)
            if self._pace is not None:
                others = {rank: sight.record for rank, sight in self._board.sights.items()}
                self._pace.look({**others, self._rank: record})
            self._written.set()
            if self._stop.is_set():
                return
            self._wake.wait(self._interval)
            self._wake.clear()

    def _record(self) -> dict[str, Any]:
        self._beats += 1
        now, ages = time.monotonic(), dict(self._ages)
        lanes = {}
        for number, activity in list(beat.activities.items()):
            seen, age = ages.get(number, (None, 0.0))
            seconds = age if seen is activity else min(now - activity.since, 2 * self._interval)
            lanes[_lane(number)] = {**activity._asdict(), "seconds": round(seconds, 1)}
            del lanes[_lane(number)]["since"]
        under_way: list[dict[str, Any]] = []
        if any(lane["seconds"] >= self._timeout / 2 for lane in lanes.values()):  # asking takes up to 60 ms
            under_way = flight.pending()
            if MAIN in lanes:
                lanes[MAIN]["waits"] |= _waited(beat.main, under_way) > 0
        return self._mine() | {
            "pid": os.getpid(), "process": self._process, "start": self._start, "beat": self._beats,
            "time": time.time(), "timeout": self._timeout, "lanes": lanes, "steps": beat.work.steps,
            "work_seconds": beat.work.seconds, "pending": under_way, "stacks": stacks(), "ended": self._ended,
        }  # fmt: skip

    def _mine(self) -> dict[str, Any]:
        return {"rank": self._rank, "world_size": self._world_size, "host": host()}

    # The end of the thread that trains.

    def _named(self, error: BaseException) -> RecipeError:
        """The error that names the rank which ``error`` only tells to be lost; it waits for its silence to show."""
        deadline = time.monotonic() + self._quiet + 2 * self._interval
        board = self._board
        assert board is not None
        while True:
            self._write_soon()
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
        self._ended = self._ending(error, verdict)
        if complaint := self._alarm(verdict):
            print(f"warning: {complaint}", file=sys.stderr, flush=True)
        return _error(verdict)

    def _end_record(self, error: BaseException | None) -> None:
        """Put the end of this rank on the board."""
        self._ended = self._ended or self._ending(error, None)
        if self._board is not None:
            self._wake.set()
            for thread in self._threads:
                thread.join(_PATIENCE)

    def _ending(self, error: BaseException | None, verdict: Verdict | None) -> dict[str, Any]:
        if error is None:
            return {"code": 0, "text": "has ended as if the run were over"}
        code = exit_code(error)
        lines = str(error).splitlines() or [type(error).__name__]
        text = f"has failed: {lines[0]}"
        if isinstance(error, SystemExit):
            text = f"has ended with exit code {code} before the run was over"
        ended: dict[str, Any] = {"code": code, "text": text, "message": lines[0]}
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


def _lane(number: int) -> str:
    return MAIN if number == beat.main else SAVE


def _waited(number: int, pending: list[dict[str, Any]] | None = None) -> float:
    """Seconds since a thread began the oldest collective that it has under way, as PyTorch's flight recorder knows it.

    What threads began that say nothing of themselves (those of the autograd engine) counts for the main thread.
    """
    others = beat.activities.keys() - {number}
    for one in flight.pending() if pending is None else pending:
        if one["thread"] == number or (number == beat.main and one["thread"] not in others):
            return float(one["seconds"])
    return 0.0
