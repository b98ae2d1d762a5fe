"""How far the parts of ``recipe prepare gpt_indexed`` scale: 10 TB on 1,000 workers, from costs measured here.

No such machine is needed: the costs are measured on one core in this run, and scale_model.py simulates the workers,
each of which takes the next part as soon as it is free. Measured are

- a whole command for a part with next to no text, and for one of a folder with many files, which lists them all;
- a whole command for a part with more text, with tokenizers and with gigatoken, where that is installed;
- the hash of a large file;
- merges of few and of many parts, and of parts of many files, called as functions;
- the joining of large files by their offsets, synced to disk, and the index of a million documents.

The floor is the encoding alone, divided evenly among all workers: no start, no listing, no hashes of the inputs, no
last worker that the others wait for. Each case gives the share of the floor that the parts reach; up to how many
workers the same parts scale linearly (each does 90 % of what one does alone); how many bytes a second all workers read
together; and the time of the merge, which is one process on one machine and is not in that share. Workers differ in
speed at random (``--spread``); a cluster's scheduler starts a task at once (``--dispatch``), and the shared file system
is as fast for all as the local disk is here for one.

    PYTHONPATH=benchmarks python benchmarks/data/scale.py

``--dry`` measures with little text and a small tokenizer; it stores nothing and needs no real data.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import common
import english
import numpy as np
import scale_model as model
from prepare_part import ENGINES

Seconds = dict[str, list[float]]


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    text: float
    """MB of the larger part."""
    files: int
    parts: tuple[int, int]
    """Parts of the two merges."""
    file: int
    """MB of a large file."""
    documents: int


FULL = Sizes(text=96, files=2000, parts=(16, 256), file=256, documents=1_000_000)
DRY = Sizes(text=0.4, files=40, parts=(2, 6), file=4, documents=10_000)
SMALL = 0.05
"""MB of text of the smaller part."""


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def write_text(folder: Path, megabytes: float, dry: bool) -> float:
    """Write a file with at least so much text in a new folder; returns the MB of the file."""
    folder.mkdir()
    english.write_lines(folder / "text.jsonl", round(megabytes * model.MB), dry)
    return (folder / "text.jsonl").stat().st_size / model.MB


def write_files(folder: Path, count: int) -> None:
    """Write ``count`` files of one short document each."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:06}.jsonl").write_text(
            json.dumps({"text": f"Document {number:06}."}) + "\n", encoding="utf-8"
        )


def command(inputs: Path, folder: Path, part: str, engine: str, core: int) -> float:
    """Wall time of the whole command for a part, on one core."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = [f"inputs={inputs}", f"tokenizer={folder / 'tokenizer'}", f"output={out}", f"part={part}", "workers=1"]
    line = [sys.executable, "-m", "recipe_core.cli", "prepare", "gpt_indexed", *words, f"engine={engine}"]

    def run() -> None:
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{' '.join(line)}: {done.stderr}")

    return timed(run)


def merges(inputs: Path, folder: Path, parts: int) -> float:
    """Make all parts of ``inputs`` in this process; returns the seconds of their merge."""
    from recipe_core.data.prepare.part import PreparePart
    from recipe_core.data.prepare.parts import read_parts
    from recipe_megatron_gpt.prepare.parts import merge, prepare_part
    from recipe_megatron_gpt.settings import GptPrepare

    made = folder / "made"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()

    def settings(name: str) -> GptPrepare:
        return GptPrepare(
            inputs=(str(inputs),), tokenizer=str(folder / "tokenizer"), output=str(made / name), engine="tokenizers",
            workers=1,
        )  # fmt: skip

    for number in range(1, parts + 1):
        prepare_part(settings(f"{number:06}"), PreparePart(number, parts))
    folders = sorted(made.iterdir())
    return timed(lambda: merge(settings("all"), read_parts(folders)))


def join(folder: Path, megabytes: int) -> tuple[float, float]:
    """Seconds to hash a large file, and to join four files of that size together, by offsets, synced to disk."""
    from recipe_core.data.prepare import PreparedPart, PreparePart, Section, join_files, sha256

    size = megabytes * model.MB // 4
    path = folder / "large"
    path.write_bytes(np.random.default_rng(0).bytes(size))
    facts = {"files": {"large": {"bytes": size, "sha256": sha256(path)}}}
    parts = [PreparedPart(folder, PreparePart(number, 4), facts) for number in range(1, 5)]
    sections = [Section(part, "large", size * number) for number, part in enumerate(parts)]
    joining = timed(lambda: join_files(folder / "joined", sections))
    return timed(lambda: sha256(folder / "joined")), joining


def index(folder: Path, count: int) -> float:
    """Seconds to write and to hash the .idx file of ``count`` documents."""
    from recipe_core.data.prepare import sha256
    from recipe_megatron_gpt.prepare.store import DOCUMENTS, SIZES, write_index

    prefix = folder / "index"
    np.full(count, 700, np.int32).tofile(prefix.with_suffix(SIZES))
    np.arange(count + 1, dtype=np.int64).tofile(prefix.with_suffix(DOCUMENTS))

    def work() -> None:
        write_index(prefix, np.dtype(np.uint16))
        sha256(prefix.with_suffix(".idx"))

    return timed(work)


def engines() -> list[str]:
    """The engines that are installed."""
    return [engine for engine in ENGINES if engine == "tokenizers" or find_spec(engine)]


def measure(folder: Path, sizes: Sizes, rounds: int, core: int) -> Seconds:
    """Seconds of everything that is measured, in turns."""
    found: Seconds = {}

    def note(name: str, seconds: float) -> None:
        found.setdefault(name, []).append(round(seconds, 5))
        print(f"  {name}: {seconds:.3f} s", flush=True)

    few, many = sizes.parts
    for engine in engines():  # fills the cache of the tokenizer, as the first part on a machine does
        command(folder / "small", folder, "1/1", engine, core)
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", flush=True)
        for engine in engines():
            note(f"{engine}, small", command(folder / "small", folder, "1/1", engine, core))
            note(f"{engine}, text", command(folder / "text", folder, "1/1", engine, core))
        note("one file", command(folder / "few", folder, "1/1", "tokenizers", core))
        note("many files", command(folder / "many", folder, f"2/{sizes.files}", "tokenizers", core))
        note("merge, few parts", merges(folder / "few", folder, few))
        note("merge, many parts", merges(folder / "few", folder, many))
        note("merge, many files", merges(folder / "many", folder, few))
        for name, seconds in zip(("hash", "join"), join(folder, sizes.file), strict=True):
            note(name, seconds)
        note("index", index(folder, sizes.documents))
    return found


def costs_of(found: Seconds, engine: str, megabytes: tuple[float, float], sizes: Sizes) -> model.Costs:
    """The costs that follow from medians; differences that noise made negative count as nothing."""
    at = {name: median(values) for name, values in found.items()}
    digest = at["hash"] / sizes.file
    per_mb = (at[f"{engine}, text"] - at[f"{engine}, small"]) / (megabytes[1] - megabytes[0])
    merge_part = max(0.0, at["merge, many parts"] - at["merge, few parts"]) / (sizes.parts[1] - sizes.parts[0])
    return model.Costs(
        start=at[f"{engine}, small"],
        file=max(0.0, at["many files"] - at["one file"]) / (sizes.files - 1),
        encode=max(1e-6, per_mb - digest),  # a part of one file hashes all of it
        digest=digest,
        merge_start=max(0.0, at["merge, few parts"] - sizes.parts[0] * merge_part),
        merge_part=merge_part,
        merge_file=max(0.0, at["merge, many files"] - at["merge, few parts"]) / (sizes.files - 1),
        copy=at["join"] / sizes.file,
        index=at["index"] / sizes.documents,
    )


def simulated(costs: model.Costs, options: argparse.Namespace, shape: tuple[float, float]) -> dict[str, Any]:
    """All cases with these costs."""
    cases: dict[str, Any] = {}
    for division in model.divisions(round(options.terabytes * 1e12)):
        parts = model.part_seconds(costs, division)
        seconds = model.makespan(model.varied(parts, options.spread), options.workers, options.dispatch)
        floor = model.floor(costs, division, options.workers)
        read = division.total + sum(model.read_for_hashes(division, n) for n in range(1, division.parts + 1))
        cases[str(division)] = {
            "seconds": round(seconds, 1),
            "floor_seconds": round(floor, 1),
            "efficiency": round(floor / seconds, 3),
            "longest_part": round(max(parts), 1),
            "linear_until_workers": model.linear_until(costs, division, options.spread, options.dispatch),
            "gb_read_per_second": round(read / seconds / 1e9, 2),
            "merge_seconds": round(model.merge_seconds(costs, division, *shape), 1),
        }
    return cases


def rows(engines_: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| engine | case | parts | of the floor | linear up to | longest part | all read | merge |"
    yield "|---|---|---|---|---|---|---|---|"
    for engine, result in engines_.items():
        for name, case in result["cases"].items():
            yield (
                f"| {engine} | {name} | {case['seconds']:,.0f} s | {case['efficiency']:.2f} | "
                f"{case['linear_until_workers']:,} workers | {case['longest_part']:,.0f} s | "
                f"{case['gb_read_per_second']:.1f} GB/s | {case['merge_seconds']:,.0f} s |"
            )


def sentence(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of README.md's row."""
    found = []
    for engine, result in results.items():
        shares = (f"{name} {case['efficiency']:.2f}" for name, case in result["cases"].items())
        merge = next(iter(result["cases"].values()))["merge_seconds"]
        found.append(f"share of the floor with {engine}: {'; '.join(shares)}; merge {merge:,.0f} s")
    return ". ".join(found)


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure, and simulate with each engine."""
    sizes = DRY if options.dry else FULL
    english.write_tokenizer(folder / "tokenizer", options.dry)
    megabytes = (
        write_text(folder / "small", SMALL, options.dry), write_text(folder / "text", sizes.text, options.dry),
    )  # fmt: skip
    write_files(folder / "few", 1)
    write_files(folder / "many", sizes.files)
    found = measure(folder, sizes, options.rounds, options.core)
    # the size of tokens and documents, from the part that the last command with text has left
    command(folder / "text", folder, "1/1", "tokenizers", options.core)
    manifest = json.loads((folder / "out" / "manifest.json").read_text(encoding="utf-8"))
    text = megabytes[1] * model.MB
    shape = manifest["files"]["tokens.bin"]["bytes"] / text, text / manifest["counts"]["documents"]
    engine_costs = {engine: costs_of(found, engine, megabytes, sizes) for engine in engines()}
    return {
        "what": f"parts of {options.terabytes:g} TB on {options.workers:,} workers, simulated with costs measured here",
        "rounds": options.rounds,
        "workers": options.workers,
        "spread": options.spread,
        "dispatch": options.dispatch,
        "token_bytes_per_byte": round(shape[0], 4),
        "engines": {
            engine: {"costs": asdict(costs), "cases": simulated(costs, options, shape)}
            for engine, costs in engine_costs.items()
        },
        "measured": found,
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "versions": common.versions("numpy", "tokenizers", *(name for name in engines() if name != "tokenizers")),
    }


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000, help="simulated workers (default: %(default)s)")
    parser.add_argument("--terabytes", type=float, default=10, help="simulated text (default: %(default)s)")
    parser.add_argument(
        "--spread", type=float, default=0.1,
        help="standard deviation of the time of equal parts, an assumption (default: %(default)s of it)",
    )  # fmt: skip
    parser.add_argument(
        "--dispatch",
        type=float,
        default=0.0,
        help="seconds to start a part, one after another (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of the measurement (default: %(default)s)")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core (default: the last)")
    parser.add_argument("--dry", action="store_true", help="measure little, in one round; nothing is stored")
    options = parser.parse_args()
    if options.dry:
        options.rounds = 1
    return options


def main() -> None:
    options = parsed()
    with tempfile.TemporaryDirectory() as name:
        os.environ["RECIPE_CACHE"] = f"{name}/cache"
        result = compare(options, Path(name))
    for engine, made in result["engines"].items():
        print(f"{engine}: " + ", ".join(f"{key} {value:.3g} s" for key, value in made["costs"].items()))
    print("\n".join([*rows(result["engines"]), "", sentence(result["engines"])]))
    if not options.dry:
        common.write("scale", result)


if __name__ == "__main__":
    main()
