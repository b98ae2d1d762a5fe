"""Suspended ranks: for some seconds, which changes nothing, or for ever, which ends the run."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import slowed
from cases import Family
from forked import curve, orphans

SHORT = "train.timeout=5"
"""The timeout of runs whose ranks never resume. On a busy machine it may pass before the fault, with the same end."""


@dataclass(frozen=True)
class Suspension:
    """SIGSTOP to ranks of a run."""

    phase: str
    processes: int
    ranks: tuple[int, ...]
    seconds: float
    """Until SIGCONT; infinite for never."""

    def __str__(self) -> str:
        return f"ranks {self.ranks} of {self.processes} suspended for {self.seconds} s, {self.phase}"


def draw(chance: random.Random) -> Suspension:
    """Draw one rank or all, in one of three cases for ever."""
    phase, processes = chance.choice(("first step", "step", "evaluation", "saving")), chance.choice((2, 2, 4))
    ever = chance.random() < 1 / 3
    every = not ever and chance.random() < 0.3
    ranks = tuple(range(processes)) if every else (chance.randrange(processes),)
    return Suspension(phase, processes, ranks, float("inf") if ever else round(chance.uniform(0.2, 3), 2))


def attempt(what: Suspension, base: Path, folder: Path) -> str:
    """Suspend ranks, and let the run end."""
    out, ever = folder / "run", what.seconds == float("inf")
    pid = slowed.begin(out, what.processes, SHORT if ever else slowed.TIMEOUT)
    slowed.reach(what.phase, out, pid)
    if slowed.is_over(pid):
        ended = slowed.end(out, pid)
        return "" if ever and ended.code == 75 else ended.ill(0) or "it was over before its phase"
    found = [int(json.loads((out / "logs" / f"rank-{rank}.beat.json").read_text())["pid"]) for rank in what.ranks]
    for rank in found:
        os.kill(rank, signal.SIGSTOP)
    if not ever:
        time.sleep(what.seconds)
        for rank in found:
            os.kill(rank, signal.SIGCONT)
    ended = slowed.end(out, pid)
    if left := orphans():
        return left
    if ever:
        return ended.ill(75) or slowed.wrong_after(base, out, what.processes)
    return ended.ill(0) or ("" if curve(out) == slowed.whole(base, what.processes) else "another curve")


FAMILY = Family("ranks", 1, draw, attempt, slowed.prepare)
