"""The watchdog, which ends a run that hangs and names the rank that it waits for. Imports no torch.

Each rank runs these threads: a writer of its own heartbeat (:mod:`recipe_core.launch.watch.heartbeat_files`), and
readers of the others' heartbeats. All of these may block in a file system. The watching thread never touches a file: it
checks this rank's own threads, and once one has waited for ``train.timeout``, it diagnoses the hang
(:mod:`recipe_core.launch.watch.diagnosis`) and ends the process.
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
from recipe_core.launch.failures import exit_code, explain, first_line, is_lost_peer, message_of, record_failure
from recipe_core.launch.host import host
from recipe_core.launch.watch import alert, flight
from recipe_core.launch.watch.diagnosis import MAIN, Diagnosis, Evidence, reported_diagnosis, world_size_conflict
from recipe_core.launch.watch.heartbeat import LOADER, SAVE, WATCHERS, Activity, Heartbeat, beat, stacks
from recipe_core.launch.watch.heartbeat_files import HeartbeatFiles, RankStatus, start_of
from recipe_core.launch.watch.periodic import PeriodicThread, finish_all, run_all_now
from recipe_core.launch.watch.stragglers import StragglerDetector

_LIMITED = (LOADER,)
"""Activities that may not exceed ``train.timeout`` either, though they do not wait for other ranks."""
_GRACE = 10.0
"""Seconds that a rank waits for a peer that has ended."""
_EXIT_GRACE = 2.0
"""Exit grace: seconds that a rank has to end by itself once another rank has written a diagnosis."""
_IO_TIMEOUT = 5.0
"""Seconds that an ending rank waits for a disk or a terminal."""
_READERS = 8
"""Reader threads, at most, that share the other ranks' files: a slow file server answers several calls at a time."""
_FEW = 16
"""Up to this many ranks, a reader reads all of its files each time. With more ranks, it reads one at a time unless
something may be wrong: a thousand ranks that read a thousand files every few seconds would overload the server."""


def backend_timeout(seconds: float) -> float:
    """Return the timeout of collectives for the backend, far above ``train.timeout`` (``seconds``).

    The backend names no rank, so that the watchdog must come first; and it counts the time in which a batch system
    suspends the ranks.
    """
    return seconds + 7 * 24 * 3600


class Watchdog:
    """A context manager that watches this rank, from before it meets the other ranks until it has left them.

    An error about a lost peer that leaves the block is replaced by one that names the rank.

    Args:
        logs: folder of the heartbeats, in the run folder, which all ranks see; None: this rank is watched alone.
        rank, world_size: of this process.
        timeout: ``train.timeout``, in seconds.
        on_hang: ``train.on_hang``.
        say: takes a line about a slow rank, on rank 0.
        heartbeat: the activities of this rank's threads.
    """

    def __init__(
        self, logs: Path | None, rank: int, world_size: int, timeout: float, on_hang: str | None = None,
        say: Callable[[str], None] = lambda text: None, heartbeat: Heartbeat = beat,
    ) -> None:  # fmt: skip
        self._rank, self._world_size, self._timeout, self._on_hang = rank, world_size, timeout, on_hang
        self._heartbeat = heartbeat
        self._files = HeartbeatFiles(logs, rank, world_size) if logs is not None and world_size > 1 else None
        self._interval = max(min(2.0, timeout / 20), 0.1, world_size / 200)
        self._quiet = max(3.0, 4 * self._interval)
        self._stragglers = StragglerDetector(rank, say) if rank == 0 and self._files else None
        self._grace = min(_GRACE, timeout / 2)
        self._process = f"{host()}-{os.getpid()}-{time.time_ns()}"
        self._start = start_of(os.environ)
        self._beats = 0
        self._ages: dict[int, tuple[Activity, float]] = {}
        self._diagnosed_for = 0.0
        """Seconds since another rank was seen to have ended with a diagnosis."""
        self._ended: dict[str, Any] | None = None
        self._suspicious = False
        """An activity of this rank has lasted for longer than a live rank is silent."""
        self._diagnosing = False
        self._stop = threading.Event()
        self._writer = PeriodicThread(f"{WATCHERS}-writer", self._write, self._interval)
        self._readers = self._all_readers() if self._files else []

    def __enter__(self) -> Watchdog:
        self._heartbeat.reset()
        _answer_with_stacks()
        if self._files is not None:
            for thread in (self._writer, *self._readers):
                thread.start()
        threading.Thread(target=self._watch, name=f"{WATCHERS}-watch", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        named = self._name_lost_rank(error) if error is not None and self._files and is_lost_peer(error) else None
        self._stop.set()
        self._write_end(named or error)
        if named is not None:
            raise named from error

    def row(self) -> dict[str, float]:
        """Return the slowest rank and its time, for a row of metrics (``train.log_stragglers``); empty if unknown."""
        return self._stragglers.row() if self._stragglers is not None else {}

    # The watching thread, which may not block.

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            passed, last = min(now - last, 2 * self._interval), now  # a process that was stopped saw nothing
            stuck, diagnosis = self._stuck_lane(passed), self._peer_diagnosis(passed)
            conflict = world_size_conflict(self._identity(), self._files.statuses) if self._files else None
            if self._stop.is_set():
                return
            if conflict is not None:
                self._end(ConfigError(conflict))
            elif diagnosis is not None:
                self._end(_error(diagnosis), diagnosis)
            elif stuck is not None:
                diagnosis = self._diagnose(stuck)
                self._end(_error(diagnosis), diagnosis)

    def _stuck_lane(self, passed: float) -> str | None:
        """The lane that has reached its limit; ages grow by ``passed``, the seconds that this thread was running."""
        ages: dict[int, tuple[Activity, float]] = {}
        for number, activity in list(self._heartbeat.activities.items()):
            before, age = self._ages.get(number, (None, 0.0))
            ages[number] = (activity, age + passed if before is activity else 0.0)
        self._ages = ages
        self._suspicious = max((age for _, age in ages.values()), default=0.0) >= self._quiet
        for number, (activity, age) in ages.items():
            peer_ended = age >= self._grace and self._peer_has_ended()
            if not peer_ended and age < self._timeout / 2:
                continue
            waited = age if activity.waits else min(age, self._waited(number))
            if waited >= self._timeout or (peer_ended and waited >= self._grace):
                return self._lane(number)
            if activity.name in _LIMITED and age >= self._timeout:
                return self._lane(number)
        return None

    def _peer_diagnosis(self, passed: float) -> Diagnosis | None:
        """The diagnosis of another rank, after the grace in which the training thread may end by itself."""
        diagnosis = reported_diagnosis(self._files.statuses) if self._files else None
        self._diagnosed_for = self._diagnosed_for + passed if diagnosis is not None else 0.0
        return diagnosis if self._diagnosed_for > _EXIT_GRACE else None

    def _peer_has_ended(self) -> bool:
        statuses = self._files.statuses.values() if self._files else ()
        return any(status.joined and (status.record or {}).get("ended") for status in statuses)

    def _diagnose(self, lane: str) -> Diagnosis:
        # Statuses must be newer than the hang, and a file server may be slow: it gets a quarter of the timeout.
        fresh = self._refresh(max(_IO_TIMEOUT, self._timeout / 4))
        diagnosis = self._evidence(lane).diagnose()
        if self._files is None or fresh:
            return diagnosis
        text = (
            f"{diagnosis.text}\nThe run folder does not answer this rank either ({self._files.folder}): what it knows "
            "of the others may be old"
        )
        return replace(diagnosis, text=text)

    def _evidence(self, lane: str) -> Evidence:
        record = self._record()
        statuses = dict(self._files.statuses) if self._files else {self._rank: RankStatus()}
        return Evidence(
            rank=self._rank, own_record=record, statuses=statuses, lane=lane, timeout=self._timeout, quiet=self._quiet
        )

    def _refresh(self, seconds: float) -> bool:
        """Write this rank's heartbeat and read all others now; True if that took at most ``seconds``."""
        self._diagnosing = True
        return self._files is None or run_all_now((self._writer, *self._readers), seconds)

    def _end(self, error: RecipeError, diagnosis: Diagnosis | None = None) -> None:
        """Report ``error`` and end this process, whatever its other threads do."""
        self._ended = self._ending(error, diagnosis)
        if self._files is not None:
            run_all_now([self._writer], _IO_TIMEOUT)
        complaint = self._alert(diagnosis) if diagnosis is not None else None
        reporter = threading.Thread(
            target=self._report, args=(error, complaint), name=f"{WATCHERS}-report", daemon=True
        )
        reporter.start()
        reporter.join(_IO_TIMEOUT)  # a log on a disk that hangs
        os._exit(exit_code(error))

    def _report(self, error: RecipeError, complaint: str | None) -> None:
        if complaint:
            print(f"warning: {complaint}", file=sys.stderr, flush=True)
        if sys.stdout.isatty() or os.environ.get("RECIPE_TERMINAL"):
            print("\x1b[?25h", flush=True)  # the progress bar's line may be open and the cursor hidden
        if not record_failure(error):
            name = f"recipe run (rank {self._rank})" if self._world_size > 1 else "recipe run"
            print(f"{name}: {error}", file=sys.stderr, flush=True)

    def _alert(self, diagnosis: Diagnosis) -> str | None:
        if self._on_hang is None or diagnosis.speaker != self._rank:
            return None
        details = {
            "RECIPE_HANG_RANKS": ",".join(map(str, diagnosis.ranks)),
            "RECIPE_HANG_HOSTS": ",".join(filter(None, diagnosis.hosts)),
            "RECIPE_HANG_KIND": "lost" if diagnosis.lost else "hung",
            "RECIPE_HANG_STEP": str(self._heartbeat.step),
            "RECIPE_HANG_MESSAGE": diagnosis.text,
            "RECIPE_HANG_LOGS": str(self._files.folder.absolute()) if self._files else "",
        }
        return alert.run(self._on_hang, details)

    # The writer and the readers.

    def _write(self) -> None:
        assert self._files is not None
        record = self._record()
        with suppress(OSError):  # a full disk: to the others, this rank is only silent
            self._files.write(record)
            if self._start and (diagnosis := (record["ended"] or {}).get("verdict")):
                self._files.write_diagnosis(diagnosis["text"])
        if self._stragglers is not None:
            records = {rank: status.record for rank, status in self._files.statuses.items()}
            self._stragglers.update({**records, self._rank: record})

    def _all_readers(self) -> list[PeriodicThread]:
        """Readers of up to eight peers each; of more, if there would be more than eight readers."""
        peers = [rank for rank in range(self._world_size) if rank != self._rank]
        number = min(_READERS, -(-len(peers) // _READERS))
        shares = [peers[first::number] for first in range(number)]
        return [PeriodicThread(f"{WATCHERS}-reader", self._reader_job(share), self._interval) for share in shares]

    def _reader_job(self, share: Sequence[int]) -> Callable[[], None]:
        """The job of a reader: read one file of its share; all of them if something may be wrong."""
        files, turns = self._files, cycle(share)
        assert files is not None

        def read() -> None:
            read_all = self._suspicious or self._diagnosing or self._world_size <= _FEW
            files.refresh(2 * self._interval, share if read_all else [next(turns)])

        return read

    def _record(self) -> dict[str, Any]:
        self._beats += 1
        now, ages = time.monotonic(), dict(self._ages)
        lanes = {}
        for number, activity in list(self._heartbeat.activities.items()):
            aged, age = ages.get(number, (None, 0.0))
            seconds = age if aged is activity else min(now - activity.since, 2 * self._interval)
            lanes[self._lane(number)] = {**activity._asdict(), "seconds": round(seconds, 1)}
            del lanes[self._lane(number)]["since"]
        under_way: list[dict[str, Any]] = []
        if any(lane["seconds"] >= self._timeout / 2 for lane in lanes.values()):  # asking takes up to 60 ms
            under_way = flight.pending()
            if MAIN in lanes:
                lanes[MAIN]["waits"] |= self._waited(self._heartbeat.main, under_way) > 0
        work = self._heartbeat.work
        return self._identity() | {
            "pid": os.getpid(), "process": self._process, "start": self._start, "beat": self._beats,
            "time": time.time(), "timeout": self._timeout, "lanes": lanes, "steps": work.steps,
            "work_seconds": work.seconds, "pending": under_way, "stacks": stacks(), "ended": self._ended,
        }  # fmt: skip

    def _identity(self) -> dict[str, Any]:
        return {"rank": self._rank, "world_size": self._world_size, "host": host()}

    def _lane(self, number: int) -> str:
        return MAIN if number == self._heartbeat.main else SAVE

    def _waited(self, number: int, pending: list[dict[str, Any]] | None = None) -> float:
        """Seconds since a thread began the oldest collective under way, by PyTorch's flight recorder.

        Collectives of threads that report no activity (those of the autograd engine) count for the main thread.
        """
        other_threads = self._heartbeat.activities.keys() - {number}
        for collective in flight.pending() if pending is None else pending:
            thread = collective["thread"]
            if thread == number or (number == self._heartbeat.main and thread not in other_threads):
                return float(collective["seconds"])
        return 0.0

    # The end of the training thread.

    def _name_lost_rank(self, error: BaseException) -> RecipeError:
        """The error that names the lost rank; it waits until the rank counts as silent."""
        deadline = time.monotonic() + self._quiet + 2 * self._interval
        while True:
            self._refresh(_IO_TIMEOUT)
            evidence = self._evidence(MAIN)
            if evidence.has_lost_rank() or time.monotonic() > deadline:
                break
            time.sleep(self._interval)
        if not evidence.has_lost_rank():
            explained = explain(error) or error
            return explained if isinstance(explained, RecipeError) else LostRankError(str(explained))
        diagnosis = evidence.diagnose()
        named = _error(diagnosis)
        self._ended = self._ending(named, diagnosis)
        if complaint := self._alert(diagnosis):
            print(f"warning: {complaint}", file=sys.stderr, flush=True)
        return named

    def _write_end(self, error: BaseException | None) -> None:
        self._ended = self._ended or self._ending(error, None)
        if self._files is not None:
            finish_all((self._writer, *self._readers), _IO_TIMEOUT)

    def _ending(self, error: BaseException | None, diagnosis: Diagnosis | None) -> dict[str, Any]:
        if error is None:
            return {"code": 0, "text": "has ended as if the run were over"}
        code = exit_code(error)
        message = first_line(message_of(error))
        text = f"has failed: {message}"
        if isinstance(error, SystemExit):
            text = f"has ended with exit code {code} before the run was over"
        ended: dict[str, Any] = {"code": code, "text": text, "message": message}
        if diagnosis is not None:
            ended["verdict"] = asdict(diagnosis)
        return ended


def _answer_with_stacks() -> None:
    """Have SIGQUIT, which our supervisor sends, print all Python stacks, even while native code holds the lock.

    Under other launchers the signal ends the process, as Ctrl-\\ at a terminal does.
    """
    if failures.FILE in os.environ and hasattr(signal, "SIGQUIT"):
        with suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr, or none with a descriptor
            faulthandler.register(signal.SIGQUIT, all_threads=True)


def _error(diagnosis: Diagnosis) -> RecipeError:
    return LostRankError(diagnosis.text) if diagnosis.lost else HungError(diagnosis.text)
