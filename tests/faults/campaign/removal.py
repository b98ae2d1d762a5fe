"""Files and folders of a run that somebody removes while it goes on: it says so, and claims nothing that is gone."""

from __future__ import annotations

import json
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import slowed
from cases import Family
from forked import Curve, Ended, curve

WHAT = (
    ".", "checkpoints", "checkpoints/step-2", "metrics.jsonl", "metrics.jsonl", "tensorboard", "logs", "job.yaml",
    "results.json", "launch",
)  # fmt: skip


@dataclass(frozen=True)
class Removal:
    """One removal."""

    what: str
    """Below the run folder."""
    phase: str
    processes: int
    delay: float
    """Seconds after the phase began."""

    def __str__(self) -> str:
        return f"{self.what} removed, {self.phase} + {self.delay:.3f} s, {self.processes} processes"


def draw(chance: random.Random) -> Removal:
    """Any phase in which the folder is there."""
    phase = chance.choice(("first step", "step", "step", "evaluation", "saving", "closing"))
    return Removal(chance.choice(WHAT), phase, chance.choice((1, 1, 2)), round(chance.uniform(0, 0.3), 3))


def attempt(removal: Removal, base: Path, folder: Path) -> str:
    """Remove it, have the run end, and give the line again."""
    out = folder / "run"
    pid = slowed.begin(out, removal.processes)
    slowed.reach(removal.phase, out, pid)
    time.sleep(removal.delay)
    path = out / removal.what
    was_there = path.exists()
    rows = len(curve(out))
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # a file may come while it goes
    else:
        path.unlink(missing_ok=True)
    over = slowed.phase(out) == "closing"  # what was closed is looked at once more, and then no more
    ended = slowed.end(out, pid)
    if ill := ended.ill(0, 2, 74, 75):
        return ill
    whole = slowed.whole(base, removal.processes)
    if ill := _claims(ended, out, removal, rows if was_there and not over else 0, whole):
        return ill
    again = slowed.again(out, removal.processes)
    if ill := again.ill(0, 2):
        return f"continued: {ill}"
    if again.code:  # what is left is no run folder, or the settings are gone
        return "" if "run" in again.text.partition("\n")[2] else f"continued: {again.text[-300:]}"
    gone = removal.what in (".", "metrics.jsonl") and ended.code == 0  # the run was over, and trains no more
    return "" if _ends(curve(out), whole, gone) else f"continued, its curve is another one: {curve(out)}"


def _ends(found: Curve, whole: Curve, gone: bool) -> bool:
    """True if the rows are those of the whole curve, of which the first may be gone; all of them if ``gone``."""
    return found == whole[len(whole) - len(found) :] and (bool(found) or gone)


def _claims(ended: Ended, out: Path, removal: Removal, rows: int, whole: Curve) -> str:
    """The fault of what a run that ended well says of its folder."""
    if ended.code:
        return "" if out.name in ended.text.partition("\n")[2] else f"what is wrong is not named: {ended.text[-300:]}"
    for name in ("results.json", "checkpoints/step-4/checkpoint.json"):
        if removal.phase != "closing" and not (out / name).exists():
            return f"exit code 0, and {name} is gone: {ended.text[-500:]}"
    if (out / "results.json").exists() and json.loads((out / "results.json").read_text())["step"] != len(whole):
        return "results.json has another step"
    said = "metrics.jsonl was removed" in ended.text
    lost = removal.what in (".", "metrics.jsonl") and rows > 0
    return "rows are lost, and no word" if lost and len(curve(out)) < len(whole) and not said else ""


FAMILY = Family("removal", 1, draw, attempt, slowed.prepare)
