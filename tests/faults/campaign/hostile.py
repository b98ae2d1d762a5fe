"""Files made to harm: every command refuses or reads them, in bounded time and memory, and runs no code in them."""

from __future__ import annotations

import os
import random
import resource
from dataclasses import dataclass
from pathlib import Path

import inputs
from cases import Family
from forked import Ended, copied, recipe
from odd.structures import CANARY
from targets import TARGETS, reseal

from recipe_core.testing.bounds import SECONDS, SPARE, allowed

IDLE = 40
"""Seconds without any use of the processor after which a command counts as hung."""
ROOM = 8 << 30
"""Bytes of address space that a command may take more than this process has: it fails before the machine does."""


@dataclass(frozen=True)
class Hostile:
    """One hostile file."""

    target: str
    seed: int
    """Of the content."""
    link: str
    """``fifo``, ``device`` or ``directory`` in place of the file; empty for content."""

    def __str__(self) -> str:
        return f"{self.target}, {self.link or f'content {self.seed}'}"


def draw(chance: random.Random) -> Hostile:
    """Mostly content; sometimes what is no regular file."""
    link = chance.choice(("fifo", "device", "directory")) if chance.random() < 0.12 else ""
    return Hostile(chance.choice(list(TARGETS)), chance.getrandbits(32), link)


def attempt(what: Hostile, base: Path, folder: Path) -> str:
    """Make the file, and have the commands read it."""
    target, chance, canary = TARGETS[what.target], random.Random(what.seed), folder / CANARY
    here, copy = base / "inputs", copied(base / "inputs" / target.source, folder / "copy")
    path = chance.choice(sorted(copy.rglob(target.pattern)))
    if what.link:
        path.unlink()
        {"fifo": os.mkfifo, "directory": Path.mkdir, "device": lambda p: p.symlink_to("/dev/zero")}[what.link](path)
    else:
        target.write(chance, path, canary)
    if target.sealed:
        reseal(path.parent)
    size = sum(file.stat().st_size for file in copy.rglob("*") if file.is_file() and not file.is_symlink())
    for number, command in enumerate(target.commands):
        out = folder / f"out-{number}"
        places = {"file": path, "out": out, "text": here / "texts" / "text.txt", "here": here}
        words = [word.format(copy, copy, **places) for word in command.replace("{}", "{0}").split()]
        before = listing(copy)
        ended = recipe(words, folder, patch=bound, idle=IDLE)
        if ill := judged(ended, size) or ("it ran code" if canary.exists() else ""):
            return f"{words[0]}: {ill}"
        if words[0] in ("verify", "inspect", "convert", "show", "check", "compare") and listing(copy) != before:
            return f"{words[0]} changed what it was to read: {sorted(set(listing(copy)) ^ set(before))}"
        if words[0] == "convert" and ended.code and (out.exists() or list(folder.glob(".out*"))):
            return "a refused conversion left something"
    return ""


def listing(folder: Path) -> list[tuple[str, int]]:
    """Names and sizes of all in a folder."""
    return sorted((str(path.relative_to(folder)), path.lstat().st_size) for path in folder.rglob("*"))


def bound() -> None:
    """In the process of the command: more than the bounds that are asserted, so that the machine lives."""
    room = ROOM + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_CPU, (100, 101))


def judged(ended: Ended, size: int) -> str:
    """The fault of reading ``size`` bytes."""
    if ill := ended.ill(0, 1, 2, 65):
        return ill
    if ended.cpu > (limit := allowed(SECONDS * max(1.0, size / 1e6))):
        return f"{ended.cpu:.1f} s of CPU for {size:,} bytes, at most {limit:.0f}"
    if ended.memory > 1.2 * size + SPARE:
        return f"{ended.memory / 1e6:.0f} MB of memory for {size:,} bytes"
    return ""


FAMILY = Family("hostile", 3, draw, attempt, inputs.prepare)
