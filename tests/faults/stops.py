"""Stop runs by random signals in every phase, start the same line again, and compare the curves.

    python tests/faults/stops.py --stops 40 --seed 3

A seed gives the same signals, phases and numbers of processes. Each stop must end with exit code 75, and the run that
continues with 0 and the losses of the uninterrupted one, to the last bit. Steps are slowed down by sleeping, so that
most stops fall between two of their micro batches. Runs are forks of this process, which has imported PyTorch already;
those that are stopped in their imports are programs of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch  # so that forks need not

from recipe_core.checkpoint import store
from recipe_core.cli import __main__ as cli
from recipe_core.launch import supervisor
from recipe_core.testing import forks
from recipe_core.testing.forked_rank import ForkedRank
from recipe_core.train import loop
from recipe_core.train import run as running
from recipe_core.train.metrics.curves import read_rows

WORDS = (
    "train.steps=4", "train.global_batch=16", "train.micro_batch=1", "train.log_every=1", "train.eval_every=2",
    "train.eval_samples=16", "train.save_every=2", "train.timeout=60", "model.dropout=0.1",
)  # fmt: skip
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
PHASES = ("imports", "start-up", "first step", "step", "step", "step", "evaluation", "saving", "closing")
PHASE = "STOPS_PHASE"
"""Environment variable: the file in which rank 0 says what it does."""
MICRO_BATCH = 0.2
"""Seconds that each micro batch of training takes at least."""


@dataclass(frozen=True)
class Stop:
    """One stop of a run."""

    signal: str
    phase: str
    processes: int
    delay: float
    """Seconds after the phase began."""


@dataclass(frozen=True)
class Outcome:
    """The end of a stopped run, and of the one that continued it."""

    stop: Stop
    codes: tuple[int, int]
    step: int
    """The step that it was stopped at."""
    problem: str
    """Empty for none."""

    def __str__(self) -> str:
        stop = self.stop
        return (
            f"{stop.signal:8} {stop.phase:11} {stop.processes} processes  after {stop.delay:5.3f} s  step {self.step}  "
            f"{self.codes[0]} then {self.codes[1]}  {self.problem or 'equal'}"
        )


def drawn(number: int, seed: int) -> list[Stop]:
    """So many stops, the same for the same seed."""
    draw = random.Random(seed)
    return [
        Stop(
            draw.choice(SIGNALS), PHASES[i % len(PHASES)], draw.choice((1, 1, 2, 2, 4)), round(draw.uniform(0, 1.2), 3)
        )
        for i in range(number)
    ]  # fmt: skip


def say(phase: str) -> None:
    """Note what rank 0 begins to do."""
    if os.environ.get("RANK", "0") == "0" and PHASE in os.environ:
        Path(os.environ[PHASE]).write_text(phase)


def slowed(function: Callable[..., Any], phase: str, seconds: float) -> Callable[..., Any]:
    """``function``, which says its phase and sleeps first."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        say(phase)
        time.sleep(seconds)
        return function(*args, **kwargs)

    return slow


def slow_down() -> None:
    """Patch what forks run: each phase says that it begins, and takes its time."""
    step, forward = loop.Trainer.step, loop.Trainer._forward

    def stepping(self: Any, *, last: bool) -> bool:
        say("first step" if self.progress.step == 0 else "step")
        return step(self, last=last)

    def forwarding(self: Any, *args: Any) -> Any:
        if self.model.module.training:
            time.sleep(MICRO_BATCH)
        return forward(self, *args)

    loop.Trainer.step, loop.Trainer._forward = stepping, forwarding  # type: ignore[method-assign,assignment]
    loop.Trainer.evaluate = slowed(loop.Trainer.evaluate, "evaluation", 0.5)  # type: ignore[method-assign]
    store.Checkpoints.save = slowed(store.Checkpoints.save, "saving", 0.5)  # type: ignore[method-assign]
    running._closed = slowed(running._closed, "closing", 0.5)
    supervisor.Popen = ForkedRank  # type: ignore[misc,assignment]


def start(out: Path, processes: int, *, forked: bool) -> int:
    """Start a run; its process id."""
    words = ["run", "megatron_gpt:tiny", *WORDS, "--processes", str(processes), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", PHASE: f"{out}.phase"}
    log = os.open(f"{out}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if not forked:
        line = [sys.executable, "-m", "recipe_core.cli", *words]
        process = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        process.returncode = 0  # we wait for it ourselves
        os.close(log)
        return process.pid
    if pid := os.fork():
        os.close(log)
        return pid
    code = 1
    try:
        forks.enter(environment)
        os.dup2(log, 1)
        os.dup2(log, 2)
        torch.set_num_threads(1)
        sys.argv = ["recipe", *words]
        code = cli.main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int, seconds: float = 240) -> int:
    """Wait for a run; its exit code."""
    deadline = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -999
        time.sleep(0.02)


def reach(stop: Stop, out: Path, pid: int) -> None:
    """Wait until the run is where it is to be stopped."""
    phase, deadline = Path(f"{out}.phase"), time.monotonic() + 120
    while stop.phase not in ("imports", "start-up") and time.monotonic() < deadline:
        over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if over or (phase.exists() and phase.read_text() == stop.phase):
            break
        time.sleep(0.005)
    while stop.phase == "imports" and not caught(pid, getattr(signal, stop.signal)) and time.monotonic() < deadline:
        time.sleep(0.001)  # the interpreter itself starts
    time.sleep(stop.delay if stop.phase in ("imports", "start-up", "step", "first step") else stop.delay / 3)


def caught(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def curve(out: Path) -> list[dict[str, Any]]:
    """What must be equal."""
    names = ("step", "loss", "val_loss", "grad_norm", "lr", "consumed_samples")
    return [{name: row[name] for name in names if name in row} for row in read_rows(out / "metrics.jsonl")]


def attempt(stop: Stop, out: Path, whole: list[dict[str, Any]]) -> Outcome:
    """Stop a run, continue it, and compare."""
    pid = start(out, stop.processes, forked=stop.phase != "imports")
    reach(stop, out, pid)
    os.kill(pid, getattr(signal, stop.signal))
    first = ended(pid)
    try:
        results = json.loads((out / "results.json").read_text())
    except OSError:
        results = {}
    step = max((row["step"] for row in curve(out)), default=0) if out.exists() else 0
    problems = [] if first == 75 else [f"ended with {first}"]
    if results and (results["exit_code"], results["stopped"]) != (75, stop.signal):
        problems.append(f"results.json says {results['exit_code']}, {results['stopped']}")
    if "Traceback" in Path(f"{out}.txt").read_text():
        problems.append("a traceback")
    second = ended(start(out, stop.processes, forked=True))
    if second != 0:
        problems.append(f"continued, it ended with {second}")
    elif curve(out) != whole:
        problems.append("another curve")
    return Outcome(stop, (first, second), step, "; ".join(problems))


def whole_curves(stops: list[Stop], folder: Path) -> dict[int, list[dict[str, Any]]]:
    """The curves of uninterrupted runs, by the number of processes; those in ``folder`` are taken as they are."""
    found = {}
    for processes in sorted({stop.processes for stop in stops}):
        out = folder / f"whole-{processes}"
        if not (out / "results.json").exists():
            assert ended(start(out, processes, forked=True)) == 0, Path(f"{out}.txt").read_text()
        found[processes] = curve(out)
    return found


def campaign(stops: list[Stop], folder: Path, at_once: int = 1) -> list[str]:
    """All ``stops``, in ``at_once`` processes; return what is wrong. Call :func:`slow_down` before."""
    for name in SIGNALS:  # which nohup, and a shell for its background jobs, ignore
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    wholes = whole_curves(stops, folder)
    children = []
    for first in range(at_once):
        if not (pid := os.fork()):
            for number in range(first, len(stops), at_once):
                outcome = attempt(stops[number], folder / f"run-{number}", wholes[stops[number].processes])
                line = f"{number + 1:3}  {outcome}\n"
                os.write(1, line.encode())
                Path(folder / f"run-{number}.outcome").write_text(outcome.problem)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    outcomes = [folder / f"run-{number}.outcome" for number in range(len(stops))]
    problems = [path.read_text() if path.exists() else "it did not come to its end" for path in outcomes]
    return [f"{stop}: {problem}" for stop, problem in zip(stops, problems, strict=True) if problem]


def main() -> int:
    """Run the campaign of the command line; 1 where anything was not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stops", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    options = parser.parse_args()
    slow_down()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        problems = campaign(drawn(options.stops, options.seed), folder, options.at_once)
    print(f"{options.stops} stops, {len(problems)} violations", *problems, sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
