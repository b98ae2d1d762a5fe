"""The model of scale.py: how long the parts of a large preparation take on many workers, and their merge.

It knows the work that ``recipe prepare gpt_indexed part=K/N`` does (see recipe_core's ``hashed_part``): a part lists
all inputs, encodes its share of the bytes, hashes the files that begin in it as a whole and, if they are cut, once more
by pieces, and hashes the piece that it reads of a file that begins before it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MB = 1_000_000
LINEAR = 0.9
"""The scaling counts as linear while every worker does this share of what one does alone."""
WORKERS = tuple(step * 10**power for power in range(6) for step in (1, 2, 5))


@dataclass(frozen=True)
class Costs:
    """Measured seconds, on one core."""

    start: float
    """A part with next to no text: start of the program, tokenizer, output folder, manifest."""
    file: float
    """Listing one input file, in every part."""
    encode: float
    """A MB of text: reading, encoding, writing and hashing the tokens."""
    digest: float
    """Hashing a MB of a file."""
    merge_start: float
    merge_part: float
    """Reading and comparing the manifest of one part in a merge, and opening its files."""
    merge_file: float
    """The entry of an input file in a merge."""
    copy: float
    """Reading, hashing and writing a MB of tokens in a merge, by as many threads as it has here, synced to disk."""
    index: float
    """A document in the .idx file of a merge, with its hash."""


@dataclass(frozen=True)
class Division:
    """A preparation: bytes of text in equal files, and the parts that it is divided into."""

    total: int
    files: int
    parts: int

    def __str__(self) -> str:
        files = "one file" if self.files == 1 else f"{self.files:,} files"
        return f"{files}, {self.parts:,} parts"


def read_for_hashes(division: Division, number: int) -> int:
    """Return the bytes of inputs that part ``number``, from 1, reads to hash them."""
    low, high, start, stop = _places(division, number)
    # The files that begin in the part as a whole, and its piece of one that begins before it.
    return stop - start + min(high, start) - low


def hashed_bytes(division: Division, number: int) -> int:
    """Return the bytes of inputs that part ``number``, from 1, hashes: those of a file that is cut count twice."""
    _, high, start, stop = _places(division, number)
    cut = division.total // division.files if stop > max(start, high) else 0
    return read_for_hashes(division, number) + cut


def _places(division: Division, number: int) -> tuple[int, int, int, int]:
    # The bytes of a part, and those of the files that begin in it.
    total, files, parts = division.total, division.files, division.parts
    low, high = total * (number - 1) // parts, total * number // parts
    start, stop = (total * -(-at * files // total) // files for at in (low, high))
    return low, high, start, stop


def part_seconds(costs: Costs, division: Division) -> list[float]:
    """Return the seconds of every part on one core."""
    fixed = costs.start + division.files * costs.file
    encode = division.total / division.parts / MB * costs.encode
    return [
        fixed + encode + hashed_bytes(division, number) / MB * costs.digest for number in range(1, division.parts + 1)
    ]


def makespan(seconds: Sequence[float], workers: int, dispatch: float = 0.0) -> float:
    """Return when the last part is done: each worker takes the next part as soon as it is free.

    Args:
        seconds: of the parts, in their order.
        workers: that work side by side.
        dispatch: seconds that the one scheduler needs to start a part; parts start one after another.
    """
    free = [0.0] * min(workers, len(seconds))
    started = 0.0
    for duration in seconds:
        started = max(started + dispatch, heapq.heappop(free))
        heapq.heappush(free, started + duration)
    return max(free)


def floor(costs: Costs, division: Division, workers: int) -> float:
    """Return the seconds of the encoding alone, divided evenly among the workers."""
    return division.total / MB * costs.encode / workers


def varied(seconds: Sequence[float], spread: float) -> list[float]:
    """Return the seconds with random speeds of workers: log-normal factors with this standard deviation, mean 1."""
    generator = random.Random(1234)
    return [value * generator.lognormvariate(-(spread**2) / 2, spread) for value in seconds]


def linear_until(costs: Costs, division: Division, spread: float, dispatch: float) -> int:
    """Return the most workers of :data:`WORKERS` up to which each does :data:`LINEAR` of what one does alone."""
    seconds = varied(part_seconds(costs, division), spread)
    alone = makespan(seconds, 1, dispatch)
    last = 1
    for workers in WORKERS:
        if alone / makespan(seconds, workers, dispatch) < LINEAR * workers:
            break
        last = workers
    return last


def merge_seconds(costs: Costs, division: Division, tokens_per_byte: float, document: float) -> float:
    """Return the seconds of the merge, which is one process.

    Args:
        costs: measured seconds.
        division: what is merged.
        tokens_per_byte: bytes of the .bin file for a byte of text.
        document: bytes of text in a document.
    """
    out = division.total * tokens_per_byte / MB
    fixed = costs.merge_start + division.parts * costs.merge_part + division.files * costs.merge_file
    # The merged files are hashed once more, for the manifest.
    return fixed + out * (costs.copy + costs.digest) + division.total / document * costs.index


def divisions(total: int) -> Iterator[Division]:
    """The cases of the benchmark: 10,000 files and one file, each in 4,000 and in 20,000 parts."""
    for files in (10_000, 1):
        for parts in (4_000, 20_000):
            yield Division(total, files, parts)
