"""Data sets of many small files: 2,000 pairs of token files, and 1,000 of BERT's HDF5 shards, to the first batch.

The files are generated: a few with random contents, and copies of them. Each measurement is a process of its own with
at most 1,024 open files (``ulimit -Sn 1024``), in which all imports are done: seconds to build the data set of a run
and to read its first batch, with an empty cache and again with what the first process left there, the growth of the
peak of resident memory, and the files that are open afterwards. All files are in the page cache.

The floor is a bare loop of NumPy or h5py that opens one file after another, reads the numbers that any reader needs
(the sizes of all sequences, or the shapes of all arrays), and reads a batch from the first file.

    PYTHONPATH=benchmarks python benchmarks/data/many_files.py

``--dry`` tries it out with few files and stores nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import common
import numpy as np

VOCABULARY, SEQUENCE, BATCH, PREDICTIONS = 30_522, 128, 8, 20
OPEN_FILES = 1024
DIFFERENT = 8
"""Files that are written; the others are copies."""
SETS = {"token files": "pairs of token files", "shards": "BERT's shards"}


def write_tokens(folder: Path, count: int) -> None:
    """Write ``count`` pairs of 40 documents with 200 tokens on average."""
    from recipe_megatron_gpt.data.indexed import IndexedWriter

    random = np.random.default_rng(0)
    for number in range(min(DIFFERENT, count)):
        with IndexedWriter(folder / f"{number:05}", "uint16") as writer:
            sizes = random.integers(1, 400, 40, dtype=np.int32)
            writer.add_documents(random.integers(0, VOCABULARY, sizes.sum(), dtype=np.uint16), sizes)
    copy(folder, count, (".bin", ".idx"))


def write_shards(folder: Path, count: int) -> None:
    """Write ``count`` compressed shards of 64 rows."""
    from recipe_bert_dp.data.shards import PLAIN, write

    rows, random = 64, np.random.default_rng(0)
    for number in range(min(DIFFERENT, count)):
        block = {
            "input_ids": random.integers(5, VOCABULARY, (rows, SEQUENCE)),
            "input_mask": np.ones((rows, SEQUENCE), np.int64),
            "segment_ids": np.repeat([[0, 1]], SEQUENCE // 2, 1).repeat(rows, 0),
            "masked_lm_positions": np.repeat(np.arange(1, PREDICTIONS + 1)[None], rows, 0),
            "masked_lm_ids": random.integers(5, VOCABULARY, (rows, PREDICTIONS)),
            "next_sentence_labels": random.integers(0, 2, rows),
        }
        write(folder / f"{number:05}.hdf5", rows, [block], PLAIN, gzip=True)
    copy(folder, count, (".hdf5",))


def copy(folder: Path, count: int, endings: tuple[str, ...]) -> None:
    """Copy the written files in turn until there are ``count`` of each ending."""
    for number in range(DIFFERENT, count):
        for ending in endings:
            shutil.copyfile(folder / f"{number % DIFFERENT:05}{ending}", folder / f"{number:05}{ending}")


def recipe(kind: str, folder: Path, cache: Path) -> Callable[[], Any]:
    """Import all; returns a function that builds the data set and reads its first batch."""
    import torch

    from recipe_core.hooks.train import Train
    from recipe_core.layouts.parallel import Run

    run = Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=Train(steps=100, global_batch=BATCH, micro_batch=BATCH), cache=cache, vocabulary=VOCABULARY,
    )  # fmt: skip
    if kind == "shards":
        from recipe_bert_dp.data import samples as bert
        from recipe_bert_dp.settings import BertHdf5

        shards = BertHdf5(files=(str(folder),), sequence=SEQUENCE, max_predictions=PREDICTIONS)
        return lambda: bert.build(shards, run).read("train", 0, BATCH)
    from recipe_megatron_gpt.data import samples as gpt
    from recipe_megatron_gpt.settings import GptIndexed

    tokens = GptIndexed(files=(str(folder),), sequence=SEQUENCE, split=(1,))
    return lambda: gpt.build(tokens, run).read("train", 0, BATCH)


def bare(kind: str, folder: Path, _: Path) -> Callable[[], Any]:
    """Import all; returns the bare loop."""
    if kind == "shards":
        import h5py

        def shapes() -> Any:
            paths = sorted(folder.glob("*.hdf5"))
            found = []
            for path in paths:
                with h5py.File(path) as file:
                    found.append({name: (file[name].shape, file[name].dtype) for name in file})
            with h5py.File(paths[0]) as file:
                return found, {name: file[name][:BATCH] for name in file}

        return shapes

    def sizes() -> Any:
        paths = sorted(folder.glob("*.idx"))
        found = []
        for path in paths:
            data = path.read_bytes()
            count = int(np.frombuffer(data, np.int64, 1, 18)[0])
            found.append(np.frombuffer(data, np.int32, count, 34))
        return found, np.fromfile(paths[0].with_suffix(".bin"), np.uint16, BATCH * (SEQUENCE + 1)).astype(np.int64)

    return sizes


def status(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def child(side: str, kind: str, folder: Path, cache: Path) -> None:
    """Measure once, in this process, and print the figures as JSON."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
    first_batch = {"recipe": recipe, "bare": bare}[side](kind, folder, cache)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = status("VmRSS")
    start, processor = time.perf_counter(), time.process_time()
    kept = first_batch()
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    figures = {
        "seconds": round(seconds, 4),
        "processor": round(processor, 4),
        "memory": max(0, status("VmHWM") - before),
        "open_files": len(os.listdir("/proc/self/fd")) - 1,  # noqa: PTH208  # without that of the listing
    }
    del kept
    print(json.dumps(figures))


def measure(kind: str, folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """All sides in turns, each in a new process."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in ("empty cache", "again", "bare")}
    cache = folder.with_name("cache")
    for number in range(rounds):
        shutil.rmtree(cache, ignore_errors=True)
        for name, values in found.items():
            words = ("--child", "bare" if name == "bare" else "recipe", kind, str(folder), str(cache))
            figures = common.in_new_process(__file__, *words, OMP_NUM_THREADS="1", RECIPE_CACHE=str(cache))
            for key, value in figures.items():
                values.setdefault(key, []).append(value)
            print(f"  round {number + 1}, {kind}, {name}: {figures}", flush=True)
    return found


def rows(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| files | first batch | time | processor time | memory | open files |"
    yield "|---|---|---|---|---|---|"
    for kind, case in cases.items():
        for name, side in case["sides"].items():
            yield (
                f"| {case['files']:,} {SETS[kind]} | {name} | {side['seconds']:.3g} s | {side['processor']:.3g} s | "
                f"{side['memory'] / 1e6:.0f} MB | {side['open_files']:.0f} |"
            )


def sentence(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of README.md's row."""
    found = []
    for kind, case in cases.items():
        empty, again, bare = (case["sides"][name] for name in ("empty cache", "again", "bare"))
        found.append(
            f"{case['files']:,} {SETS[kind]}: {empty['seconds']:.3g} s with an empty cache, "
            f"{again['seconds']:.3g} s again (bare loop {bare['seconds']:.3g} s), "
            f"{empty['memory'] / 1e6:.0f} MB, {empty['open_files']:.0f} open files"
        )
    return "; ".join(found)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of token files (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=1000, help="BERT's shards (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns (default: %(default)s)")
    parser.add_argument("--dry", action="store_true", help="few files and one round; nothing is stored")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.dry:
        options.pairs, options.shards, options.rounds = 12, 12, 1
    return options


def main() -> None:
    options = parsed()
    if options.child:
        side, kind, folder, cache = options.child
        child(side, kind, Path(folder), Path(cache))
        return
    cases: dict[str, Any] = {}
    for kind, count, write in (
        ("token files", options.pairs, write_tokens), ("shards", options.shards, write_shards),
    ):  # fmt: skip
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "data"
            folder.mkdir()
            write(folder, count)
            found = measure(kind, folder, options.rounds)
        medians = {side: {key: median(values) for key, values in figures.items()} for side, figures in found.items()}
        cases[kind] = {"files": count, "sides": medians, "all": found}
    print("\n".join([*rows(cases), "", sentence(cases)]))
    if not options.dry:
        common.write(
            "many_files",
            {
                "what": f"time to the first batch of many small files, at most {OPEN_FILES:,} of them open",
                "rounds": options.rounds,
                "cases": cases,
                "load_average": [round(value, 1) for value in os.getloadavg()],
                "versions": common.versions("numpy", "h5py", "torch"),
            },
        )


if __name__ == "__main__":
    main()
