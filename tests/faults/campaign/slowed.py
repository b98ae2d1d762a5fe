"""A small GPT whose phases are announced and slowed down, so that a fault can hit each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked import Curve, Ended, curve, recipe, start, wait

from recipe_core.checkpoint.saving import store
from recipe_core.train import run as running
from recipe_core.train import stopping
from recipe_core.train.step import Stepper

WORDS = (
    "train.steps=4", "train.global_batch=16", "train.micro_batch=1", "train.log_every=1", "train.eval_every=2",
    "train.eval_samples=16", "train.save_every=2", "model.dropout=0.1",
)  # fmt: skip
PHASES = ("start-up", "first step", "step", "evaluation", "saving", "closing")
TIMEOUT = "train.timeout=240"
PHASE = "CAMPAIGN_PHASE"
"""Environment variable: the file in which rank 0 notes its phase."""
MICRO_BATCH = 0.04
"""Minimum seconds of each micro batch of training."""
PAUSE = 0.15
"""Seconds before each evaluation, save and closing."""


def say(phase: str) -> None:
    """Note the phase that rank 0 begins."""
    if os.environ.get("RANK", "0") == "0" and PHASE in os.environ:
        Path(os.environ[PHASE]).write_text(phase)


def _slowed(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """Return ``function``, preceded by a note of its phase and a pause."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        say(phase)
        time.sleep(PAUSE)
        return function(*args, **kwargs)

    return slow


def slow_down() -> None:
    """Patch the process of the run, and thereby the forks that are its ranks."""
    step, forward = Stepper.step, Stepper._forward

    def stepping(self: Any, *, last: bool) -> bool:
        say("first step" if self.progress.step == 0 else "step")
        return step(self, last=last)

    def forwarding(self: Any, *args: Any) -> Any:
        if self.model.module.training:
            time.sleep(MICRO_BATCH)
        return forward(self, *args)

    stopping.SECONDS = 4 * MICRO_BATCH  # so that most of the steps are long ones, which may be given up
    Stepper.step, Stepper._forward = stepping, forwarding  # type: ignore[method-assign,assignment]
    Stepper.evaluate = _slowed(Stepper.evaluate, "evaluation")  # type: ignore[method-assign]
    store.Checkpoints.save = _slowed(store.Checkpoints.save, "saving")  # type: ignore[method-assign]
    running._closing_results = _slowed(running._closing_results, "closing")


def words_of(out: Path, processes: int, *more: str) -> list[str]:
    """Return the command line of a run."""
    return ["run", "megatron_gpt:tiny", *WORDS, *(more or (TIMEOUT,)), "--processes", str(processes), "--out", str(out)]


def begin(out: Path, processes: int, *more: str) -> int:
    """Start the run; return its process id."""
    (out.parent / "phase").unlink(missing_ok=True)
    environment = {PHASE: str(out.parent / "phase"), "RECIPE_GRACE": "5"}
    return start(words_of(out, processes, *more), out.parent / "output.txt", environment, slow_down)


def end(out: Path, pid: int) -> Ended:
    """Wait for it."""
    return wait(pid, out.parent / "output.txt")


def again(out: Path, processes: int) -> Ended:
    """Give the same command again, at full speed."""
    return recipe(words_of(out, processes), out.parent)


def is_over(pid: int) -> bool:
    """Return True if the process has ended and was not waited for yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reach(wanted: str, out: Path, pid: int) -> None:
    """Wait until the run is in the phase ``wanted``, or over."""
    deadline = time.monotonic() + 240
    while wanted != "start-up" and time.monotonic() < deadline and not is_over(pid):
        if phase(out) == wanted:
            break
        time.sleep(0.002)


def phase(out: Path) -> str:
    """Return the phase that rank 0 noted last; empty if none yet."""
    said = out.parent / "phase"
    return said.read_text() if said.exists() else ""


def whole(base: Path, processes: int) -> Curve:
    """Return the curve of an uninterrupted run on ``processes`` processes, made by :func:`prepare`."""
    return curve(base / f"whole-{processes}")


def prepare(base: Path) -> None:
    """Make the uninterrupted runs, once for all comparisons."""
    for processes in (1, 2, 4):
        out = base / f"whole-{processes}"
        if not out.exists():
            ended = again(out, processes)
            assert ended.code == 0, ended.text


def wrong_after(base: Path, out: Path, processes: int) -> str:
    """Give the same command again; return what is wrong with its end or its curve."""
    ended = again(out, processes)
    if ill := ended.ill(0):
        return f"continued: {ill}"
    return "" if curve(out) == whole(base, processes) else "continued, its curve is another one"
