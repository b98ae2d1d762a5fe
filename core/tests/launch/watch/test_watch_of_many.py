"""The watchdogs of many ranks on a slow file server with stale content: half an hour of simulated time."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from simulated_time import Event, Simulation, Thread, simulation

from recipe_core.errors import RecipeError
from recipe_core.launch.watch import heartbeat, heartbeat_files, periodic, watchdog
from recipe_core.launch.watch.heartbeat import Heartbeat
from recipe_core.launch.watch.heartbeat_files import HeartbeatFiles, Record
from recipe_core.launch.watch.watchdog import Watchdog

TIMEOUT = 120.0
STALE = 5.0
"""Seconds for which a client caches the content of a file, as NFS does."""
CALM, BUSY = (0.0005, 0.02), (0.5, 6.0)
"""Minimum and maximum seconds of a call to the server."""
CULPRIT = 17


class Process:
    """One rank, the owner of its threads."""

    def __init__(self, rank: int) -> None:
        self.rank = rank


@dataclass
class Server:
    """The folder of heartbeats, with the delays of its calls."""

    simulation: Simulation
    chance: random.Random
    busy: Callable[[float], bool]
    """Returns True if the server is overloaded at the given time."""
    newest: dict[int, tuple[Record, float]] = field(default_factory=dict)
    seen: dict[tuple[int, int], tuple[float, tuple[Record | None, float]]] = field(default_factory=dict)
    """Time and result of a client's last request for a file, by client and file."""
    calls: int = 0

    def wait(self) -> None:
        """Wait as long as a call to the server takes; one in 500 takes seconds, even if the server is calm."""
        self.calls += 1
        slow = self.busy(self.simulation.now) or self.chance.random() < 1 / 500
        self.simulation.sleep(self.chance.uniform(*(BUSY if slow else CALM)))

    def write(self, rank: int, record: Record) -> None:
        self.wait()
        self.newest[rank] = record, self.simulation.now

    def read(self, client: int, rank: int) -> tuple[Record | None, float]:
        asked, content = self.seen.get((client, rank), (-STALE, (None, 0.0)))
        if self.simulation.now - asked >= STALE:
            self.wait()
            content = self.newest.get(rank, (None, 0.0))
            self.seen[client, rank] = self.simulation.now, content
        return content


class Barrier:
    """A collective: all ranks wait for the last one."""

    def __init__(self, simulation: Simulation, ranks: int) -> None:
        self.simulation, self.ranks, self.here, self.event = simulation, ranks, 0, simulation.event()

    def wait(self) -> None:
        self.here += 1
        if self.here < self.ranks:
            self.event.wait()
        else:
            self.here, before, self.event = 0, self.event, self.simulation.event()
            before.set()


@dataclass
class Told:
    """The error with which a rank ended."""

    time: float
    rank: int
    error: RecipeError


class Run:
    """A run of ``ranks`` ranks; one of them hangs in its loader from ``hangs_at`` on."""

    def __init__(
        self, simulation: Simulation, ranks: int, busy: Callable[[float], bool], hangs_at: float = float("inf")
    ) -> None:
        self.simulation, self.ranks, self.hangs_at = simulation, ranks, hangs_at
        self.server = Server(simulation, random.Random(1), busy)
        self.told: list[Told] = []
        self.processes = [Process(rank) for rank in range(ranks)]
        self.steps = 0
        self._barrier = Barrier(simulation, ranks)

    def begin(self) -> None:
        for process in self.processes:
            self.simulation.start(lambda process=process: self._train(process), process)  # type: ignore[misc]

    def _train(self, process: Process) -> None:
        """Take steps of some seconds, sometimes evaluate, and save on rank 0 while the others wait."""
        chance, heart, rank = random.Random(process.rank), Heartbeat(), process.rank
        self.simulation.sleep(chance.uniform(0, 20))  # imports
        with Watchdog(Path("logs"), rank, self.ranks, TIMEOUT, heartbeat=heart):
            with heart.waiting("meeting the other ranks"):
                self._barrier.wait()
            for step in range(1, 10_000):
                heart.begin_step(step)
                if rank == CULPRIT and self.simulation.now >= self.hangs_at:
                    self.simulation.event().wait()
                self.simulation.sleep(chance.uniform(0.1, 1.0))
                heart.enter("forward", 0)
                self.simulation.sleep(chance.uniform(2, 3))
                heart.enter("backward", 0)
                self.simulation.sleep(chance.uniform(2, 3))
                with heart.waiting("exchange of gradients"):
                    self._barrier.wait()
                heart.end_step()
                self.steps = step
                if step % 40 == 0:
                    if rank == 0:
                        with heart.during("save"):
                            self.simulation.sleep(TIMEOUT * 0.8)
                    with heart.waiting("save"):
                        self._barrier.wait()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    """Yield a function that makes a run with its watchdogs in simulated time, on a simulated server."""
    with simulation() as here:
        runs: list[Run] = []

        class SimulatedFiles(HeartbeatFiles):
            def write(self, record: Record) -> None:
                runs[0].server.write(self.rank, record)
                self._began = self._began if self._began is not None else here.now

            def _read_record(self, rank: int) -> tuple[Record | None, float]:
                return runs[0].server.read(self.rank, rank)

        class System:
            """The operating system, except for the end of a process."""

            _exit = staticmethod(lambda code: here.end(here.actor.owner))

            def __getattr__(self, name: str) -> Any:
                return getattr(os, name)

        class Clock:
            monotonic = staticmethod(lambda: here.now)
            time = staticmethod(lambda: 1e9 + here.now)
            time_ns = staticmethod(lambda: int(1e9 * here.now))
            sleep = staticmethod(here.sleep)

        class Threads:
            Event = staticmethod(lambda: Event(here))
            Thread = staticmethod(lambda **words: Thread(here, **words))

        def tell(dog: Watchdog, error: RecipeError, complaint: str | None) -> None:
            runs[0].told.append(Told(here.now, dog._rank, error))

        monkeypatch.setattr(watchdog, "HeartbeatFiles", SimulatedFiles)
        monkeypatch.setattr(watchdog, "os", System())
        for module in (watchdog, periodic):
            monkeypatch.setattr(module, "threading", Threads)
        monkeypatch.setattr(watchdog, "host", lambda: f"n{here.actor.owner.rank // 8}")  # type: ignore[attr-defined]
        monkeypatch.setattr(heartbeat_files, "host", lambda: "the machine of this test")
        monkeypatch.setattr(watchdog, "stacks", dict)  # the frames would be those of the simulation
        monkeypatch.setattr(watchdog, "_answer_with_stacks", lambda: None)
        monkeypatch.setattr(Watchdog, "_report", tell)
        for module in (watchdog, heartbeat_files, periodic, heartbeat):
            monkeypatch.setattr(module, "time", Clock)

        def make(*options: Any, **words: Any) -> Run:
            runs.append(Run(here, *options, **words))
            runs[0].begin()
            return runs[0]

        yield make


def busy_at_times(now: float) -> bool:
    """Return True for two minutes of every ten."""
    return 240 <= now % 600 < 360


def always_busy(now: float) -> bool:
    return True


HALF_AN_HOUR = pytest.mark.parametrize(
    ("ranks", "busy", "seconds"),
    [
        (24, always_busy, 300),
        pytest.param(64, busy_at_times, 1800, marks=pytest.mark.long),
        pytest.param(64, always_busy, 1800, marks=pytest.mark.long),
    ],
)


@HALF_AN_HOUR
def test_no_verdict_while_all_goes_well(
    world: Callable[..., Run], ranks: int, busy: Callable[[float], bool], seconds: float
) -> None:
    run = world(ranks, busy)
    run.simulation.run(until=seconds)
    assert run.told == []
    assert run.steps > seconds / 12


@HALF_AN_HOUR
def test_a_rank_that_is_stopped_is_named_in_time(
    world: Callable[..., Run], ranks: int, busy: Callable[[float], bool], seconds: float
) -> None:
    run = world(ranks, busy)
    run.simulation.run(until=seconds / 2)
    run.simulation.end(run.processes[CULPRIT])
    run.simulation.run(until=seconds / 2 + 3 * TIMEOUT)
    assert len(run.told) == ranks - 1
    assert run.told[0].time < seconds / 2 + 1.5 * TIMEOUT
    for one in run.told:
        assert str(one.error).startswith(f"rank {CULPRIT} of {ranks} (host n2) has given no sign of life"), one


@HALF_AN_HOUR
def test_a_rank_that_hangs_is_named_in_time(
    world: Callable[..., Run], ranks: int, busy: Callable[[float], bool], seconds: float
) -> None:
    run = world(ranks, busy, hangs_at=seconds / 2)
    run.simulation.run(until=seconds / 2 + 4 * TIMEOUT)
    assert len(run.told) == ranks
    assert run.told[0].time < seconds / 2 + 2.5 * TIMEOUT  # it may have just started to wait for a save
    for one in run.told:
        assert str(one.error).startswith(f"rank {CULPRIT} of {ranks} (host n2) has been in 'loader'"), one


def test_a_server_is_asked_little_while_all_goes_well(world: Callable[..., Run]) -> None:
    """Each rank reads a few files at a time, not those of all others."""
    run = world(24, lambda now: False)
    run.simulation.run(until=60)
    before = run.server.calls
    run.simulation.run(until=160)
    assert (run.server.calls - before) / 100 < 24 * 4 / 2  # a beat, and three readers, every two seconds
