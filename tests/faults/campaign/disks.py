"""Disks that fill up at the moment in which a file is written; then the same line again, when there is room."""

from __future__ import annotations

import json
import random
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import filled
import slowed
from cases import Family
from forked import Ended, curve, orphans, recipe

SECONDS = 30
"""In which a command must have ended after its disk filled up."""
PLACES = {
    "the logs": (r"^run/logs(/rank-\d+\.log)?$", 6),
    "the heartbeats": (r"^run/logs/rank-\d+\.beat", 2),
    "the start": (r"^run(/\.agreement.*|/\.lock|/launch.*)?$", 4),
    "job.yaml": (r"^run/(\.job\.yaml.*|job\.yaml)", 2),
    "the metrics": (r"^run/\.?metrics\.jsonl", 3),
    "TensorBoard": (r"^run/tensorboard", 2),
    "the checkpoint": (r"^run/checkpoints(/\.step-\d+[^/]*(/(?!\.?checkpoint).*)?)?$", 8),
    "the manifest": (r"^run/checkpoints/.*checkpoint\.json", 4),
    "the name of the checkpoint": (r"^run/checkpoints/step-\d+$", 2),
    "the results": (r"^run/\.?results\.json", 4),
    "temporary files": (r"^tmp/recipe", 1),
    "any file": (r"^run", 40),
    "the cache": (r"^cache/.*\.part/|^cache/tokenizers", 6),  # its text takes a while to make before that
}
"""Paths below the disk, and how many of them a run writes, more or less."""
OF_TWO = ("the logs", "the heartbeats", "temporary files")
"""Places that one process does not write."""
SHOWN_BY = r"No space left on device|Disk quota exceeded|File too large|B are free"
WAY_OUT = r"(free some space|remove some files|choose another|give another|set RECIPE_CACHE|set TMPDIR)"


@dataclass(frozen=True)
class Fault:
    """One disk that fills up."""

    place: str
    kind: str
    """See :data:`filled.KINDS`."""
    number: int
    """Files of the place that are written before it fills up."""
    left: int
    """Pages or inodes that are left then."""
    processes: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.left} left, at {self.place} ({self.number}), {self.processes} processes"


def draw(chance: random.Random) -> Fault:
    """A place, a kind and an amount of room."""
    processes = chance.choice((1, 2))
    place = chance.choice([place for place in PLACES if processes == 2 or place not in OF_TWO])
    kind, left = chance.choice(filled.KINDS), chance.choice((0, 0, 1, 2, 7))
    return Fault(place, kind, chance.randrange(PLACES[place][1]), left, processes)


def attempt(fault: Fault, base: Path, folder: Path) -> str:
    """Fill the disk of a run, judge its end, make room, and give the same line again."""
    with filled.mounted(folder / "disk") as disk:
        return tried(fault, base, folder, disk)


def tried(fault: Fault, base: Path, folder: Path, disk: Path) -> str:
    """The same on the file system ``disk``."""
    out, fired = disk / "run", folder / "fired"
    environment = {}
    if fault.place == "the cache":
        environment["RECIPE_CACHE"] = str(disk / "cache")
    if fault.place == "temporary files":
        (disk / "tmp").mkdir()
        environment["TMPDIR"] = str(disk / "tmp")

    def fill() -> None:
        filled.fill(disk, fault.kind, fault.left)

    def patch() -> None:
        tempfile.tempdir = None  # which this process has found already
        filled.when_written(disk, PLACES[fault.place][0], fault.number, fill, fired)

    ended = recipe(slowed.words_of(out, fault.processes), folder, environment, patch)
    seconds = time.time() - fired.stat().st_mtime if fired.exists() else 0.0
    if wrong := orphans() or judged(ended, disk, seconds):
        return wrong
    filled.make_room(disk)
    if ill := recipe(slowed.words_of(out, fault.processes), folder, environment).ill(0):
        return f"after room was made: {ill}"
    if damaged := unfinished(disk):
        return f"after room was made: {damaged}"
    same = curve(out) == slowed.whole(base, fault.processes)
    return "" if same or lost_rows(ended) else "after room was made, another curve"


def judged(ended: Ended, disk: Path, seconds: float) -> str:
    """The fault of the end of a command whose disk was full."""
    if ill := ended.ill(0, 74):
        return ill
    if seconds > SECONDS:
        return f"it ended {seconds:.0f} s after the disk was full"
    if ended.code == 74:
        said = [
            text
            for text in re.split(r"(?m)^recipe(?: run)?(?: \(rank \d+\))?: ", ended.text)[1:]
            if re.search(SHOWN_BY, text)
        ]
        if len(said) != 1 or str(disk) not in said[0] or not re.search(WAY_OUT, said[0]):
            return f"{len(said)} messages, one expected, with path and way out: {ended.text.strip()[-500:]}"
    return unfinished(disk)


def lost_rows(ended: Ended) -> bool:
    """True if the run came to its end and said that rows of metrics are lost: the same line trains no more."""
    return ended.code == 0 and "metrics.jsonl: the rows of" in ended.text


def unfinished(disk: Path) -> str:
    """A file that stands under its final name and is not whole, or one that was left over."""
    for path in (path for place in ("", "launch/", "checkpoints/step-*/") for path in disk.glob(f"run/{place}*.json")):
        try:
            json.loads(path.read_text())
        except ValueError:
            return f"{path} is not whole"
    for path in disk.glob("run/checkpoints/step-*"):
        for name, entry in json.loads((path / "checkpoint.json").read_text())["files"].items():
            if (path / name).stat().st_size != entry["size"]:
                return f"{path / name} is not whole"
    left = list(disk.rglob(".*.part"))
    return f"left over: {left[0]}" if left else ""


FAMILY = Family("disks", 2, draw, attempt, slowed.prepare, filled.unavailable)
