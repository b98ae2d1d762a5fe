"""A small GPT whose phases say that they begin and take their time, so that a fault meets each of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forked import Curve, Ended, curve, recipe, start, wait

from recipe_core.checkpoint import store
from recipe_core.train import loop, stopping
from recipe_core.train import run as running

WORDS = (
    "train.steps=4", "train.global_batch=16", "train.micro_batch=1", "train.log_every=1", "train.eval_every=2",
    "train.eval_samples=16", "train.save_every=2", "model.dropout=0.1",
)  # fmt: skip
PHASES = ("start-up", "first step", "step", "evaluation", "saving", "closing")
TIMEOUT = "train.timeout=240"
PHASE = "CAMPAIGN_PHASE"
"""Environment variable: the file in which rank 0 says what it does."""
MICRO_BATCH = 0.04
"""Seconds that each micro batch of training takes at least."""
PAUSE = 0.15
"""Seconds that an evaluation, a save and the closing wait before they begin."""


def say(phase: str) -> None:
    """Note what rank 0 begins to do."""
    if os.environ.get("RANK", "0") == "0" and PHASE in os.environ:
        Path(os.environ[PHASE]).write_text(phase)


def _slowed(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """``function``, which says its phase and sleeps first."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        say(phase)
        time.sleep(PAUSE)
        return function(*args, **kwargs)

    return slow


def slow_down() -> None:
    """Patch a process that is to be the run, and with it the forks that are its ranks."""
    step, forward = loop.Trainer.step, loop.Trainer._forward

    def stepping(self: Any, *, last: bool) -> bool:
        say("first step" if self.progress.step == 0 else "step")
        return step(self, last=last)

    def forwarding(self: Any, *args: Any) -> Any:
        if self.model.module.training:
            time.sleep(MICRO_BATCH)
        return forward(self, *args)

    stopping.SECONDS = 4 * MICRO_BATCH  # so that most of the steps are long ones, which may be given up
    loop.Trainer.step, loop.Trainer._forward = stepping, forwarding  # type: ignore[method-assign,assignment]
    loop.Trainer.evaluate = _slowed(loop.Trainer.evaluate, "evaluation")  # type: ignore[method-assign]
    store.Checkpoints.save = _slowed(store.Checkpoints.save, "saving")  # type: ignore[method-assign]
    running._closed = _slowed(running._closed, "closing")


def words_of(out: Path, processes: int, *more: str) -> list[str]:
    """The command line of a run."""
    return ["run", "megatron_gpt:tiny", *WORDS, *(more or (TIMEOUT,)), "--processes", str(processes), "--out", str(out)]


def begin(out: Path, processes: int, *more: str) -> int:
    """Start the run; its process id."""
    (out.parent / "phase").unlink(missing_ok=True)
    environment = {PHASE: str(out.parent / "phase"), "RECIPE_GRACE": "5"}
    return start(words_of(out, processes, *more), out.parent / "output.txt", environment, slow_down)


def end(out: Path, pid: int) -> Ended:
    """Wait for it."""
    return wait(pid, out.parent / "output.txt")


def again(out: Path, processes: int) -> Ended:
    """The same line again, at its full speed."""
    return recipe(words_of(out, processes), out.parent)


def is_over(pid: int) -> bool:
    """True if the process has ended, and is not waited for yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def reach(wanted: str, out: Path, pid: int) -> None:
    """Wait until the run is in the phase ``wanted``, or over."""
    deadline = time.monotonic() + 240
    while wanted != "start-up" and time.monotonic() < deadline and not is_over(pid):
        if phase(out) == wanted:
            break
        time.sleep(0.002)


def phase(out: Path) -> str:
    """What rank 0 does, as it said last; empty: nothing yet."""
    said = out.parent / "phase"
    return said.read_text() if said.exists() else ""


def whole(base: Path, processes: int) -> Curve:
    """The curve of an uninterrupted run on so many processes, made by :func:`prepare`."""
    return curve(base / f"whole-{processes}")


def prepare(base: Path) -> None:
    """Make the uninterrupted runs, once for all families that compare with them."""
    for processes in (1, 2, 4):
        out = base / f"whole-{processes}"
        if not out.exists():
            ended = again(out, processes)
            assert ended.code == 0, ended.text


def wrong_after(base: Path, out: Path, processes: int) -> str:
    """Give the same line again; say what is wrong about its end or its curve."""
    ended = again(out, processes)
    if ill := ended.ill(0):
        return f"continued: {ill}"
    return "" if curve(out) == whole(base, processes) else "continued, its curve is another one"
