"""Threads in simulated time: one runs at a time, and waiting costs nothing. Seeds determine all that happens."""

from __future__ import annotations

import functools
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


class Over(BaseException):  # not an error: it ends a thread
    """The exception that ends a thread, wherever it waits."""


@dataclass
class Actor:
    """A thread of the simulation."""

    owner: object
    """The process it belongs to: all threads of a process end together."""
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    over: bool = False
    """True if it has to end or has ended."""
    wakes: int = 0
    """The number of times it was woken: alarms set for an earlier wait are ignored."""


class Simulation:
    """A clock, and threads that wait by it. Time passes only while all of them wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self._alarms: list[tuple[float, int, Actor, int]] = []
        self._numbers = itertools.count()
        self._back = threading.Semaphore(0)
        self._actor: Actor | None = None
        self._threads: list[tuple[threading.Thread, Actor]] = []
        self._errors: list[BaseException] = []

    @property
    def actor(self) -> Actor:
        """The running thread."""
        assert self._actor is not None
        return self._actor

    def start(self, action: Callable[[], object], owner: object) -> Actor:
        """Start a thread of ``owner``, now."""
        actor = Actor(owner)

        def run() -> None:
            actor.turn.acquire()
            try:
                if not actor.over:
                    action()
            except Over:
                pass
            except BaseException as error:  # run() raises it
                self._errors.append(error)
            actor.over = True
            self._back.release()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append((thread, actor))
        thread.start()
        self._alarm(actor, 0.0)
        return actor

    def end(self, owner: object) -> None:
        """End all threads of ``owner``, as when a process is killed; if the calling thread is one, it ends at once."""
        for _, actor in self._threads:
            actor.over = actor.over or actor.owner is owner
        if self._actor is not None and self._actor.owner is owner:
            raise Over

    def run(self, until: float) -> None:
        """Let time pass until ``until``, or until a thread raises an error, which is raised here."""
        while self._alarms and self._alarms[0][0] <= until and not self._errors:
            self.now, _, actor, wake = heapq.heappop(self._alarms)
            if not actor.over and wake == actor.wakes:
                self._give(actor)
        self.now = max(self.now, until)
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        """End all threads."""
        for thread, actor in self._threads:
            actor.over = True
            while thread.is_alive():
                actor.turn.release()
                thread.join(0.05)

    def sleep(self, seconds: float) -> None:
        """Let the calling thread wait."""
        self._alarm(self.actor, seconds)
        self.pause()

    def pause(self) -> None:
        """Let the calling thread wait until :meth:`wake`, or an alarm that it has set, wakes it."""
        actor = self.actor
        self._back.release()
        actor.turn.acquire()
        if actor.over:
            raise Over

    def wake(self, actor: Actor) -> None:
        """Wake a thread that waits, now."""
        self._alarm(actor, 0.0)

    def _alarm(self, actor: Actor, seconds: float) -> None:
        heapq.heappush(self._alarms, (self.now + seconds, next(self._numbers), actor, actor.wakes))

    def _give(self, actor: Actor) -> None:
        actor.wakes += 1
        before, self._actor = self._actor, actor
        actor.turn.release()
        self._back.acquire()
        self._actor = before

    def event(self) -> Event:
        """Like ``threading.Event()``."""
        return Event(self)


class Event:
    """``threading.Event`` in simulated time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self._set, self._waiting = simulation, False, list[Actor]()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for actor in self._waiting:
            self._simulation.wake(actor)
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        actor = self._simulation.actor
        self._waiting.append(actor)
        if timeout is None:
            self._simulation.pause()
        else:
            self._simulation.sleep(timeout)
        if actor in self._waiting:
            self._waiting.remove(actor)
        return self._set


class Thread:
    """``threading.Thread`` in simulated time; it has the owner of the thread that creates it."""

    def __init__(
        self, simulation: Simulation, target: Callable[..., object], args: tuple[Any, ...] = (), **_: Any
    ) -> None:
        self._simulation, self._done = simulation, Event(simulation)
        self._target = functools.partial(target, *args)

    def start(self) -> None:
        def run() -> None:
            self._target()
            self._done.set()

        self._simulation.start(run, self._simulation.actor.owner)

    def join(self, timeout: float | None = None) -> None:
        self._done.wait(timeout)


@contextmanager
def simulation() -> Iterator[Simulation]:
    """Yield a simulation; its threads end with the block."""
    one = Simulation()
    try:
        yield one
    finally:
        one.close()
