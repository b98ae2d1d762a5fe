"""Runs that a signal stops, or kills, in every phase, start-up imports included; then the same line again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import slowed
from cases import Family
from forked import curve, orphans, temporary

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
PHASES = ("imports", "start-up", "first step", "step", "step", "step", "evaluation", "saving", "closing")


@dataclass(frozen=True)
class Stop:
    """One stop of a run."""

    signal: str
    phase: str
    processes: int
    delay: float
    """Seconds after the phase began."""
    rank: int | None
    """Which is killed; None for the command itself."""

    def __str__(self) -> str:
        whom = "" if self.rank is None else f" to rank {self.rank}"
        return f"{self.signal}{whom}, {self.phase} + {self.delay:.3f} s, {self.processes} processes"


def draw(chance: random.Random) -> Stop:
    """A signal to the command in two of three cases, else SIGKILL to it or to a rank."""
    kills = chance.random() < 0.35
    phase, processes = chance.choice(PHASES), chance.choice((1, 1, 2, 2, 4))
    longest = 1.2 if phase in ("imports", "start-up") else 0.6 if "step" in phase else 0.15
    rank = chance.randrange(processes) if kills and processes > 1 and chance.random() < 0.5 else None
    name = "SIGKILL" if kills else chance.choice(SIGNALS)
    return Stop(name, phase, processes, round(chance.uniform(0, longest), 3), rank if phase != "imports" else None)


def caught(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0] or "0", 16) >> (number - 1) & 1)


def imported(stop: Stop, out: Path) -> int:
    """Start a program of its own, and wait until its interpreter could take the signal; its process id."""
    line = [sys.executable, "-m", "recipe_core.cli", *slowed.words_of(out, stop.processes)]
    log = out.parent / "output.txt"
    temporary(log).mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary(log))}
    with log.open("ab") as file:
        process = subprocess.Popen(
            line, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            preexec_fn=lambda: [signal.signal(getattr(signal, name), signal.SIG_DFL) for name in SIGNALS],
        )  # fmt: skip
    process.returncode = 0  # we wait for it ourselves
    number, deadline = getattr(signal, stop.signal), time.monotonic() + 120
    while number != signal.SIGKILL and not caught(process.pid, number) and time.monotonic() < deadline:
        time.sleep(0.001)  # the interpreter itself starts
    return process.pid


def victim(stop: Stop, out: Path, pid: int) -> int:
    """The process that gets the signal."""
    record = out / "logs" / f"rank-{stop.rank}.beat.json"
    deadline = time.monotonic() + 120
    while stop.rank is not None and time.monotonic() < deadline and not slowed.is_over(pid):
        try:
            return int(json.loads(record.read_text())["pid"])
        except (OSError, ValueError, KeyError):
            time.sleep(0.005)  # it has not begun
    return pid


def attempt(stop: Stop, base: Path, folder: Path) -> str:
    """Stop a run, continue it, and compare."""
    out = folder / "run"
    pid = imported(stop, out) if stop.phase == "imports" else slowed.begin(out, stop.processes)
    slowed.reach(stop.phase if stop.phase != "imports" else "start-up", out, pid)
    target = victim(stop, out, pid)
    time.sleep(stop.delay)
    was_over = slowed.is_over(pid)
    try:
        os.kill(target, getattr(signal, stop.signal))
    except ProcessLookupError:
        was_over = True  # a rank that had ended
    ended = slowed.end(out, pid)
    if left := orphans():
        return left
    codes: tuple[int, ...] = (75,) if stop.signal != "SIGKILL" else (-9,) if stop.rank is None else (137,)
    if was_over or (stop.phase == "closing" and stop.signal == "SIGKILL"):
        codes = (*codes, 0)
    if ill := ended.ill(*codes):
        return ill
    return _recorded(stop, out, ended.code) or slowed.wrong_after(base, out, stop.processes)


def _recorded(stop: Stop, out: Path, code: int) -> str:
    """The fault of results.json of a run that a signal stopped."""
    if stop.signal == "SIGKILL" or code != 75 or not curve(out):
        return ""
    try:
        results = json.loads((out / "results.json").read_text())
    except OSError:
        return ""
    said = results["exit_code"], results["stopped"]
    return "" if said == (75, stop.signal) else f"results.json says {said}"


FAMILY = Family("stops", 3, draw, attempt, slowed.prepare)
