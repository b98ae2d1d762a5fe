"""Batches from memory-mapped token files: our ``Samples.read`` against megatron-core's GPTDataset and default_collate.

Both sides read the same shuffled samples of one file (uint16, documents of 500 tokens on average), 8 samples of 2048
tokens a batch, as int64 tokens and labels. megatron-core is configured as its pre-training script does by default
(no reset of positions, no masked end of document, no attention mask); it also makes loss masks and position ids,
which are the same for every batch and which our model does without. Its dataset is read in this process, without
workers, as ours is.

The floor is what no reader can go below: the bytes. A batch reads 8 * 2049 * 2 = 33 kB of token ids and writes
8 * 2048 * 8 * 2 = 262 kB of tokens and labels. It is measured as two widening copies, into new memory, of so many ids
that lie together at a random place of the same file, mapped once more. What lies between that and us is mostly the
memory: a batch of shuffled documents is not one place but some forty, each on pages that this process has not touched.

Run it in an environment that also has megatron-core:

    PYTHONPATH=benchmarks python benchmarks/data/gather.py
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import common
import numpy as np
import torch
from torch.utils.data import default_collate

from recipe_core.hooks.train import Train
from recipe_core.layouts.parallel import Run
from recipe_megatron_gpt.data.indexed import IndexedWriter
from recipe_megatron_gpt.data.samples import build
from recipe_megatron_gpt.settings import GptIndexed

SEQUENCE, BATCH, SEED = 2048, 8, 1234
Reader = Callable[[int], dict[str, Any]]
"""Gives the batch that starts at this sample."""


def write_tokens(prefix: Path, tokens: int) -> None:
    """Documents of random ids, their lengths exponentially distributed around 500."""
    random = np.random.default_rng(0)
    with IndexedWriter(prefix, "uint16") as writer:
        for _ in range(tokens // 1_000_000):
            sizes = np.maximum(1, random.exponential(500, 2000)).astype(np.int32)
            writer.add_documents(random.integers(0, 50_000, sizes.sum(), dtype=np.uint16), sizes)


def ours(prefix: Path, samples: int) -> Reader:
    run = Run(
        device=torch.device("cpu"),
        mesh=None,
        rank=0,
        world_size=1,
        local_rank=0,
        dp_rank=0,
        dp_size=1,
        train=Train(steps=samples // BATCH, global_batch=BATCH, seed=SEED),
        cache=prefix.parent / "ours",
        vocabulary=50_304,
    )
    config = GptIndexed(files=(str(prefix),), sequence=SEQUENCE, split=(1,), order="megatron")
    found = build(config, run)
    return lambda start: found.read("train", start, BATCH)


def theirs(prefix: Path, samples: int) -> Reader:
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQUENCE,
        blend=([str(prefix)], None),
        split="1",
        path_to_cache=str(prefix.parent / "theirs"),
        tokenizer=SimpleNamespace(vocab_size=50_304, eod=0, pad=-1, unique_identifiers={"class": "none"}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    dataset = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
    return lambda start: default_collate([dataset[i] for i in range(start, start + BATCH)])


def floor(prefix: Path) -> Reader:
    tokens = np.asarray(np.memmap(prefix.with_suffix(".bin"), dtype=np.uint16, mode="r"))
    places = np.random.default_rng(1).integers(0, tokens.size - BATCH * SEQUENCE - 1, 1 << 16).tolist()

    def read(start: int) -> dict[str, Any]:
        at = places[start // BATCH % len(places)]
        ids = tokens[at : at + BATCH * SEQUENCE + 1]
        return {"tokens": ids[:-1].astype(np.int64), "labels": ids[1:].astype(np.int64)}

    return read


def speed(read: Reader, start: int, batches: int) -> float:
    """Samples per second."""
    begin = time.perf_counter()
    for number in range(batches):
        read(start + number * BATCH)
    return batches * BATCH / (time.perf_counter() - begin)


def measure(prefix: Path, pairs: int, batches: int) -> dict[str, list[float]]:
    """A B A B: so that a slow moment of the machine meets all sides. No sample is read twice."""
    samples = (3 * pairs + 1) * batches * BATCH
    sides = {"recipe": ours(prefix, samples), "megatron_core": theirs(prefix, samples), "floor": floor(prefix)}
    for start in range(0, batches * BATCH, BATCH):  # warm up, and see that both read the same
        mine, peer = (sides[name](start) for name in ("recipe", "megatron_core"))
        if not all(torch.equal(mine[name], peer[name]) for name in ("tokens", "labels")):
            raise SystemExit(f"the batches that start at sample {start} differ")
    found: dict[str, list[float]] = {name: [] for name in sides}
    for pair in range(pairs):
        for place, (name, read) in enumerate(sides.items()):
            found[name].append(speed(read, (len(sides) * pair + place + 1) * batches * BATCH, batches))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000_000, help="tokens in the file, 2 bytes each")
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--batches", type=int, default=100, help="batches per measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "tokens"
        write_tokens(prefix, options.tokens)
        found = measure(prefix, options.pairs, options.batches)
    ratios = [mine / peer for mine, peer in zip(found["recipe"], found["megatron_core"], strict=True)]
    medians = {name: statistics.median(values) for name, values in found.items()}
    print(f"{'':16}{'samples/s':>12}{'us a batch':>12}{'lowest':>12}{'highest':>12}")
    for name, values in found.items():
        row = (medians[name], BATCH / medians[name] * 1e6, min(values), max(values))
        print(f"{name:16}" + "".join(f"{value:12,.0f}" for value in row))
    print(f"times as fast as megatron-core, median of {options.pairs} pairs: {statistics.median(ratios):.1f}")
    print(f"times the floor: {medians['floor'] / medians['recipe']:.1f}")
    result = {
        "what": f"batches of {BATCH} samples of {SEQUENCE} tokens from {options.tokens:,} uint16 tokens, samples/s",
        "median": {name: round(value) for name, value in medians.items()},
        "all": {name: [round(value) for value in values] for name, values in found.items()},
        "ratio": {"median": round(statistics.median(ratios), 2), "all": [round(ratio, 2) for ratio in ratios]},
        "versions": common.versions("numpy", "torch", "megatron-core"),
        "processor": common.processor(),
    }
    common.write("gather", result)


if __name__ == "__main__":
    main()
