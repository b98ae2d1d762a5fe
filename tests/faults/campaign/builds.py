"""Preparations and conversions that a signal ends: nothing stands under the final name before it is whole."""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import inputs
import slowed
from cases import Family
from forked import orphans, recipe, start, wait

from recipe_core.testing.checkpoints import equal, tensors

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "SIGKILL")
PREPARED = ("gpt", "bert", "packed")


@dataclass(frozen=True)
class Build:
    """One end of a command."""

    what: str
    """A data set, or a format."""
    signal: str
    delay: float
    """Seconds after its start."""
    workers: int

    def __str__(self) -> str:
        return f"{self.signal} {self.delay:.3f} s after the start of {self.what}, {self.workers} workers"


def draw(chance: random.Random) -> Build:
    """As many preparations as conversions."""
    what = chance.choice((*PREPARED, *PREPARED, *inputs.CONVERTED))
    return Build(what, chance.choice(SIGNALS), round(chance.uniform(0, 0.8), 3), chance.choice((1, 2)))


def words_of(build: Build, here: Path, output: Path) -> list[str]:
    """The line of the command."""
    text = [f"inputs={here}/texts/text.txt", "documents=blank_line", f"workers={build.workers}", f"output={output}"]
    if build.what == "gpt":
        return ["prepare", "gpt_indexed", *text, f"tokenizer={here}/tokenizers/tokenizer.json"]
    if build.what == "bert":
        sizes = ["sequence=64", "max_predictions=10", "samples_per_shard=100", "dupe_factor=1"]
        return ["prepare", "bert_hdf5", *text, f"vocabulary={here}/tokenizers/vocab.txt", *sizes]
    if build.what == "packed":
        return ["prepare", "bert_packed", f"inputs={here}/bert", f"workers={build.workers}", f"output={output}"]
    source = here / "run, dcp" / "checkpoints" / "step-4"
    return ["convert", str(source), str(output), "--to", *inputs.CONVERTED[build.what]]


def attempt(build: Build, base: Path, folder: Path) -> str:
    """End it, give the line again, and compare with what an undisturbed one made."""
    here, output, log = base / "inputs", folder / "out", folder / "output.txt"
    words, number = words_of(build, here, output), getattr(signal, build.signal)
    pid = start(words, log)
    time.sleep(build.delay)
    was_over = slowed.is_over(pid)
    if not was_over:
        os.kill(pid, number)
    ended = wait(pid, log)
    if left := orphans():
        return left
    codes = (0,) if was_over else (0, -number) if number == signal.SIGKILL else (0, 75, -number, 128 + number)
    if (ill := ended.ill(*codes)) and not (ended.code == -number and not ended.text.strip()):
        return ill
    there = output.exists()  # whole, also where the signal came after it had got its name: see below
    if not there and (ill := recipe(words, folder).ill(0)):
        return f"again: {ill}"
    if ill := recipe(["verify", str(output)], folder).ill(0):
        return f"verify: {ill}"
    killed = ended.code == -signal.SIGKILL  # which leaves what it was writing, under a name that begins with a dot
    beside = [] if killed else [path.name for path in folder.iterdir() if path.name.startswith(".out")]
    return _difference(build, here, output) or (f"it left {beside}" if beside else "")


def _difference(build: Build, here: Path, output: Path) -> str:
    """Differences from what stands in ``here``."""
    if build.what in PREPARED:
        clean = here / inputs.DATA[build.what]
        names = sorted(path.relative_to(clean) for path in clean.rglob("*") if path.suffix in (".bin", ".idx", ".hdf5"))
        other = [str(name) for name in names if (clean / name).read_bytes() != (output / name).read_bytes()]
        return f"other bytes in {', '.join(other)}" if other else ""
    if build.what in ("dcp", "single"):
        return "" if equal(tensors(output), tensors(here / build.what)) else "other values"
    sizes = [
        sorted((path.name, path.stat().st_size) for path in folder.rglob("*") if path.suffix != ".json")
        for folder in (output, here / build.what)
    ]
    return "" if sizes[0] == sizes[1] else f"other files: {sizes}"


FAMILY = Family("builds", 1, draw, attempt, inputs.prepare)
