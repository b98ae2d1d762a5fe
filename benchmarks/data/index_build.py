"""Building the index over a token file: recipe_index against megatron-core's own functions.

    PYTHONPATH=benchmarks python benchmarks/data/index_build.py [--documents 10000000] [--mean 500] [--rounds 7]

One epoch over that many documents: their order, where each sample starts, and the order of the samples. Every build
has a process of its own, whose memory nothing has used before; the contestants take turns. Needs recipe-index and
megatron-core in one environment, and Linux, whose /proc knows the peak of a part of a process. Writes
results/index_build.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import common
import numpy as np
from numpy.typing import NDArray

SEED = 1234
STEPS = ("document order", "sample index", "shuffle index")
Arrays = list[NDArray[Any]]
Step = Callable[[Arrays], NDArray[Any]]


def megatron_core(documents: NDArray[np.int32], sizes: NDArray[np.int32], sequence: int) -> list[Step]:
    """The steps of ``GPTDataset._build_document_sample_shuffle_indices``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optional packages that it does without
        from megatron.core.datasets import helpers
        from megatron.core.datasets.gpt_dataset import _build_document_index, _build_shuffle_index
    state = np.random.RandomState(SEED)
    tokens = int(sizes.sum(dtype=np.int64))
    return [
        lambda made: _build_document_index(documents, 1, state, False),
        lambda made: helpers.build_sample_idx(sizes, made[0], sequence, 1, tokens, True, True),
        lambda made: _build_shuffle_index(len(made[1]) - 1, len(made[1]) - 1, state),
    ]


def recipe_index(
    documents: NDArray[np.int32], sizes: NDArray[np.int32], sequence: int, *, megatron: bool
) -> list[Step]:
    """The same steps with the compiled functions, in either order."""
    import recipe_index as index

    samples = (int(sizes.sum(dtype=np.int64)) - 1) // sequence
    drawn = [documents.size] if megatron else []
    return [
        lambda made: index.document_order(documents, 1, SEED, False, megatron),
        lambda made: index.sample_index(sizes, made[0], sequence, samples),
        lambda made: index.shuffle_index(samples, samples, SEED, megatron, drawn),
    ]


def floor(documents: NDArray[np.int32], sizes: NDArray[np.int32], sequence: int) -> list[Step]:
    """The bytes that must move: inputs read and results written once, front to back. Looking sizes up in a shuffled
    order, which misses the caches, and drawing random numbers come on top for everyone."""
    samples = (int(sizes.sum(dtype=np.int64)) - 1) // sequence

    def read_and_write(made: Arrays) -> NDArray[np.int32]:
        starts = np.empty((samples + 1, 2), dtype=np.int32)
        starts.fill(np.dot(made[0], sizes) % 2)
        return starts

    return [lambda made: documents.copy(), read_and_write, lambda made: np.ones(samples, dtype=np.uint32)]


CONTESTANTS: dict[str, Callable[[NDArray[np.int32], NDArray[np.int32], int], list[Step]]] = {
    "megatron-core": megatron_core,
    "recipe_index, fast": lambda *given: recipe_index(*given, megatron=False),
    "recipe_index, megatron": lambda *given: recipe_index(*given, megatron=True),
    "floor": floor,
}


def memory(field: str) -> int:
    """A line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def build(contestant: str, count: int, mean: int, sequence: int) -> dict[str, Any]:
    """Build once, in this process: seconds of each step, peak bytes above what was there before, and a hash."""
    sizes = np.random.default_rng(0).integers(1, 2 * mean, count, dtype=np.int32)
    steps = CONTESTANTS[contestant](np.arange(count, dtype=np.int32), sizes, sequence)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = memory("VmRSS")
    made: Arrays = []
    seconds = []
    for step in steps:
        start = time.perf_counter()
        made.append(step(made))
        seconds.append(time.perf_counter() - start)
    peak = memory("VmHWM") - before
    digest = hashlib.sha256()
    for array in made:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return {"seconds": seconds, "peak": peak, "digest": digest.hexdigest()}


def in_new_process(contestant: str, options: argparse.Namespace) -> dict[str, Any]:
    """``build`` in a process of its own."""
    numbers = [str(options.documents), str(options.mean), str(options.sequence)]
    return common.in_new_process(__file__, "--build", contestant, *numbers, OMP_NUM_THREADS="1")


def summary(runs: list[dict[str, Any]], peers: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and the median of how much faster each run was than its peer's of the same round."""
    totals = [sum(run["seconds"]) for run in runs]
    return {
        "seconds": round(median(totals), 4),
        "lowest": round(min(totals), 4),
        "highest": round(max(totals), 4),
        "steps": {name: round(median(run["seconds"][i] for run in runs), 4) for i, name in enumerate(STEPS)},
        "times_faster": round(median(sum(p["seconds"]) / own for p, own in zip(peers, totals, strict=True)), 2),
        "peak_megabytes": round(median(run["peak"] for run in runs) / 1e6, 1),
    }


def report(results: dict[str, dict[str, Any]]) -> None:
    """Print a table."""
    print(f"{'':24}" + "".join(f"{name:>16}" for name in (*STEPS, "all", "times faster", "peak")))
    for name, result in results.items():
        steps = "".join(f"{1000 * seconds:13.1f} ms" for seconds in result["steps"].values())
        faster, peak = result["times_faster"], result["peak_megabytes"]
        print(f"{name:24}{steps}{1000 * result['seconds']:13.1f} ms{faster:16.2f}{peak:13.1f} MB")


def compare(options: argparse.Namespace) -> None:
    """All contestants in turn, as many rounds as asked for."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        for name, done in runs.items():
            done.append(in_new_process(name, options))
    if len({run["digest"] for name in ("megatron-core", "recipe_index, megatron") for run in runs[name]}) != 1:
        sys.exit("recipe_index's order `megatron` is not that of megatron-core")
    results = {name: summary(done, runs["megatron-core"]) for name, done in runs.items()}
    report(results)
    written = {
        "what": "one epoch: document order, sample index, shuffle index; medians over processes of their own, in turn",
        "documents": options.documents,
        "mean_length": options.mean,
        "sequence": options.sequence,
        "rounds": options.rounds,
        "results": results,
        "orders_equal": True,
        "processor": common.processor(),
        "versions": common.versions("numpy", "recipe-index", "megatron-core"),
    }
    common.write("index_build", written)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--mean", type=int, default=500)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--build", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        contestant, *numbers = options.build
        print(json.dumps(build(contestant, *map(int, numbers))))
    else:
        compare(options)


if __name__ == "__main__":
    main()
