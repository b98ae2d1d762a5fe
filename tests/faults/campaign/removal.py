"""Files and folders of a run that are removed while it trains: it reports this, and claims no removed file."""

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
    """Path below the run folder."""
    phase: str
    processes: int
    delay: float
    """Seconds after the start of the phase."""

    def __str__(self) -> str:
        return f"{self.what} removed, {self.phase} + {self.delay:.3f} s, {self.processes} processes"


def draw(chance: random.Random) -> Removal:
    """Draw any phase in which the folder exists."""
    phase = chance.choice(("first step", "step", "step", "evaluation", "saving", "closing"))
    return Removal(chance.choice(WHAT), phase, chance.choice((1, 1, 2)), round(chance.uniform(0, 0.3), 3))


def attempt(removal: Removal, base: Path, folder: Path) -> str:
    """Remove it, wait for the end of the run, and give the same command again."""
    out = folder / "run"
    pid = slowed.begin(out, removal.processes)
    slowed.reach(removal.phase, out, pid)
    time.sleep(removal.delay)
    path = out / removal.what
    was_there = path.exists()
    rows = len(curve(out))
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)  # a file may be created meanwhile
    else:
        path.unlink(missing_ok=True)
    over = slowed.phase(out) == "closing"  # closed files are checked once more, later not
    ended = slowed.end(out, pid)
    if ill := ended.ill(0, 2, 74, 75):
        return ill
    whole = slowed.whole(base, removal.processes)
    if ill := _claims(ended, out, removal, rows if was_there and not over else 0, whole):
        return ill
    again = slowed.again(out, removal.processes)
    if ill := again.ill(0, 2):
        return f"continued: {ill}"
    if again.code:  # the rest is no run folder, or the settings are missing
        return "" if "run" in again.text.partition("\n")[2] else f"continued: {again.text[-300:]}"
    gone = removal.what in (".", "metrics.jsonl") and ended.code == 0  # the run was over and does not train again
    return "" if _ends(curve(out), whole, gone) else f"continued, its curve is another one: {curve(out)}"


def _ends(found: Curve, whole: Curve, gone: bool) -> bool:
    """Return True if the rows are the end of the whole curve; if ``gone``, there may be none."""
    return found == whole[len(whole) - len(found) :] and (bool(found) or gone)


def _claims(ended: Ended, out: Path, removal: Removal, rows: int, whole: Curve) -> str:
    """Return what is wrong with the claims of a successful run about its folder."""
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
