"""Batches from BERT's HDF5 shards: our ``Samples.read`` against a dataset of single samples under a DataLoader.

The other side is the way of the published pre-training scripts (NVIDIA's, and Neuron's after it): the arrays of a shard
are read into memory, ``__getitem__`` makes the tensors of one sample (six conversions to int64, and labels of the whole
length from the masked positions), a RandomSampler draws, and the DataLoader's default collation stacks them, in this
process. Its time holds the reading of the shard, as ours does. Both sides give every sample of the shards once.

The shards are those that ``recipe prepare bert_hdf5`` makes of the text, compressed, as they are by default, and not:
phase 1 with 128 tokens and 20 predictions in micro batches of 16, phase 2 with 512 and 80 in micro batches of 2, as the
variants have them.

    PYTHONPATH=benchmarks python benchmarks/data/load_bert.py
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common
import h5py
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from recipe_bert_dp.data.samples import build
from recipe_bert_dp.data.shards import PLAIN
from recipe_bert_dp.prepare.hdf5 import prepare
from recipe_bert_dp.settings import BertHdf5, PrepareHdf5
from recipe_core.engine.memory import keep_freed_memory
from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run

PHASES = {"phase 1": (128, 20, 16, 2), "phase 2": (512, 80, 2, 5)}
"""Tokens and predictions of a row, rows of a micro batch, and how often each document is used."""


class SingleSamples(Dataset[list[Tensor]]):
    """A shard in memory that gives one sample at a time."""

    def __init__(self, path: Path) -> None:
        with h5py.File(path) as file:
            self.arrays = [file[name][:] for name in PLAIN]

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: int) -> list[Tensor]:
        ids, mask, segments, positions, words, following = (
            torch.from_numpy(np.asarray(values[index].astype(np.int64))) for values in self.arrays
        )
        labels = torch.full_like(ids, -1)
        padding = (positions == 0).nonzero()
        used = int(padding[0]) if len(padding) else len(positions)
        labels[positions[:used]] = words[:used]
        return [ids, segments, mask, labels, following]


Consume = Callable[[Tensor], int]
"""Takes the masks of a batch: either how many rows it has, or, for the comparison, how many tokens are real."""


def ours(folder: Path, phase: tuple[int, ...], rows: int, consume: Consume) -> int:
    """Read every row once; returns the sum of what ``consume`` gave."""
    sequence, predictions, batch, _ = phase
    run = Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1,
        train=Train(global_batch=batch, micro_batch=batch), cache=folder, vocabulary=30_522,
    )  # fmt: skip
    samples = build(BertHdf5(files=(str(folder),), sequence=sequence, max_predictions=predictions), run)
    starts = range(0, rows, batch)
    return sum(consume(samples.read("train", start, min(batch, rows - start))["input_mask"]) for start in starts)


def theirs(folder: Path, phase: tuple[int, ...], rows: int, consume: Consume) -> int:
    """The same, shard by shard."""
    found = 0
    for path in sorted(folder.rglob("training_*.hdf5")):
        data = SingleSamples(path)
        loader = DataLoader(data, batch_size=phase[2], sampler=RandomSampler(data))
        found += sum(consume(mask) for _, _, mask, _, _ in loader)
    return found


SIDES = {"recipe": ours, "single samples": theirs}


def measure(folder: Path, phase: tuple[int, ...], pairs: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Samples per second of both sides, by the clock and by the processor's time; A B A B, so that a slow moment of the
    machine meets both."""
    rows = 0
    for path in folder.rglob("training_*.hdf5"):
        with h5py.File(path) as file:
            rows += len(file["input_ids"])
    real = {name: read(folder, phase, rows, lambda mask: int(mask.sum())) for name, read in SIDES.items()}
    if len(set(real.values())) != 1:
        raise SystemExit(f"the sides did not read the same samples; real tokens: {real}")
    clock: dict[str, list[float]] = {name: [] for name in SIDES}
    processor: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(pairs):
        for name, read in SIDES.items():
            begin, began = time.perf_counter(), time.process_time()
            assert read(folder, phase, rows, lambda mask: mask.size(0)) == rows
            clock[name].append(rows / (time.perf_counter() - begin))
            processor[name].append(rows / (time.process_time() - began))
    return clock, processor


def floor(folder: Path) -> dict[str, float]:
    """Bytes of a sample in the files and in memory, and how fast zlib alone inflates them; the best of three times."""
    chunks, rows, plain = [], 0, 0
    for path in folder.rglob("training_*.hdf5"):
        with h5py.File(path) as file:
            rows += len(file["input_ids"])
            plain += sum(file[name].nbytes for name in PLAIN)
            every = (file[name].id for name in PLAIN)
            chunks += [array.read_direct_chunk(array.get_chunk_info(n).chunk_offset)[1]
                       for array in every for n in range(array.get_num_chunks())]  # fmt: skip
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        for chunk in chunks:
            zlib.decompress(chunk)
        seconds.append(time.perf_counter() - begin)
    return {
        "bytes_per_sample_in_files": round(sum(map(len, chunks)) / rows),
        "bytes_per_sample": round(plain / rows),
        "inflated_megabytes_per_second": round(plain / min(seconds) / 1e6),
        "samples_per_second": round(rows / min(seconds)),
    }


def prepared(folder: Path, phase: tuple[int, ...], gzip: bool, options: argparse.Namespace) -> None:
    """Make the shards."""
    sequence, predictions, _, dupe = phase
    prepare(
        PrepareHdf5(
            inputs=(str(options.text),), vocabulary=str(options.vocabulary), output=str(folder), workers=1, gzip=gzip,
            sequence=sequence, max_predictions=predictions, dupe_factor=dupe,
        )
    )  # fmt: skip


def summary(case: str, clock: dict[str, list[float]], processor: dict[str, list[float]]) -> dict[str, Any]:
    """Print the medians, and return them with every measurement."""
    ratios = [a / b for a, b in zip(*clock.values(), strict=True)]
    work = [a / b for a, b in zip(*processor.values(), strict=True)]
    for side, speeds in clock.items():
        spread = f"{min(speeds):9,.0f} to {max(speeds):9,.0f}"
        print(f"{case:24}{side:16}{statistics.median(speeds):10,.0f} samples/s  ({spread})")
    print(
        f"{case:24}{statistics.median(ratios):.1f} times as fast, median of {len(ratios)} pairs; "
        f"{statistics.median(work):.1f} times by the processor's time",
        flush=True,
    )
    return {
        "median": {side: round(statistics.median(speeds)) for side, speeds in clock.items()},
        "all": {side: [round(speed) for speed in speeds] for side, speeds in clock.items()},
        "ratio": {"median": round(statistics.median(ratios), 2), "all": [round(ratio, 2) for ratio in ratios]},
        "ratio_by_processor_time": {
            "median": round(statistics.median(work), 2), "all": [round(ratio, 2) for ratio in work],
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_text(parser)
    parser.add_argument("--pairs", type=int, default=5)
    options = common.parsed(parser)
    torch.set_num_threads(1)
    keep_freed_memory()
    result: dict[str, Any] = {
        "what": "samples/s of every training row of wiki-sample, one process, one thread",
        "processor": common.processor(),
        "versions": common.versions("h5py", "numpy", "torch"),
        "load_before": round(os.getloadavg()[0], 1),
    }
    for name, phase in PHASES.items():
        for gzip in (True, False):
            case = f"{name}, {'compressed' if gzip else 'uncompressed'}"
            with tempfile.TemporaryDirectory() as parent:
                folder = Path(parent) / "shards"
                prepared(folder, phase, gzip, options)
                result[case] = summary(case, *measure(folder, phase, options.pairs))
                if gzip:
                    result[case]["floor"] = floor(folder)
                    print(f"{case:24}floor: {result[case]['floor']}")
    common.write("load_bert", result)


if __name__ == "__main__":
    main()
