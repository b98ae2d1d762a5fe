"""Phase 2 of BERT-base on a CPU: real tokens/s of packed rows against plain ones, beside what their fill promises.

    PYTHONPATH=benchmarks python benchmarks/training/train_bert_packed.py [--data FOLDER] [--rows 16] [--rounds 3]
        [--texts articles paragraphs]
        [--layers 6]

Sequence 512, 80 predictions, micro batch 2, forward and backward with dropout, in the precision of bf16_mixed. Two data
sets are prepared from the text, in FOLDER unless they are there, each plain and packed: ``articles``, whose pairs fill
a row as far as the article does, and ``paragraphs``, where every paragraph is a document of its own. Of each, the rows
at evenly spaced ranks of their real tokens are taken, so that a few rows have the fill of the whole set.

The promise is the ratio of the real tokens in those rows: what packing gives where padding costs as much as tokens do.
Our attention passes over padding already, so that plain rows are cheaper than that; ``masked`` has the same plain rows
with attention over all places, as models compute it that mask padding out. The three take turns micro batch by micro
batch in one process, the first turn is not counted, and each micro batch counts with its median over the rounds. The
optimizer's step is left out: at the batches of phase 2 it takes no time worth counting. Writes
results/train_bert_packed.json beside this file; texts measured earlier with as many layers stay.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
import torch

SEQUENCE, PREDICTIONS, MICRO_BATCH = 512, 80, 2
KINDS = ("plain", "packed")
CONTESTANTS = ("masked", *KINDS)
Batches = list[dict[str, torch.Tensor]]


def prepared(folder: Path, name: str, text: Path, vocabulary: Path) -> dict[str, Path]:
    """The data set ``name``, plain and packed."""
    from recipe_bert_dp.prepare.hdf5 import prepare
    from recipe_bert_dp.prepare.pack import prepare as pack
    from recipe_bert_dp.settings import PrepareHdf5, PreparePacked

    found = {kind: folder / f"{name}-{kind}" for kind in KINDS}
    source = text if name == "articles" else paragraphs(text, folder / "paragraphs.jsonl")
    if not found["plain"].is_dir():
        prepare(
            PrepareHdf5(
                inputs=(str(source),), vocabulary=str(vocabulary), output=str(found["plain"]), sequence=SEQUENCE,
                max_predictions=PREDICTIONS, dupe_factor=1,
            )
        )  # fmt: skip
    if not found["packed"].is_dir():
        pack(PreparePacked(inputs=(str(found["plain"]),), output=str(found["packed"])))
    return found


def paragraphs(text: Path, target: Path) -> Path:
    """Every paragraph of more than 200 characters as a document of its own."""
    if not target.exists():
        with gzip.open(text, "rt", encoding="utf-8") as articles, target.open("w", encoding="utf-8") as lines:
            for article in articles:
                for part in json.loads(article)["text"].split("\n"):
                    if len(part) > 200:
                        lines.write(json.dumps({"text": part}) + "\n")
    return target


def rows_of(folder: Path, count: int) -> tuple[Batches, float]:
    """``count`` rows in micro batches, and the fill of the whole set."""
    from recipe_bert_dp.data import shards

    found = []
    for path in shards.find([folder / "training"]):
        with shards.opened(path) as file:
            found.append(shards.read(file, path, shards.shape_of(file, path), 0, len(file["input_ids"])))
    rows = {name: np.concatenate([block[name] for block in found]) for name in found[0]}
    real = (rows["input_mask"] != 0).sum(1)
    ranks = (np.arange(count) + 0.5) / count * len(real)
    chosen = np.random.default_rng(1).permutation(np.argsort(real, kind="stable")[ranks.astype(int)])
    tensors = {name: torch.from_numpy(values[chosen]).long() for name, values in rows.items()}
    batches = [{name: v[at : at + MICRO_BATCH] for name, v in tensors.items()} for at in range(0, count, MICRO_BATCH)]
    return batches, float(real.mean()) / SEQUENCE


def tokens_of(batches: Batches) -> int:
    """Tokens that are no padding."""
    return sum(int((batch["input_mask"] != 0).sum()) for batch in batches)


def measure(sets: dict[str, Path], options: argparse.Namespace, model: Any, micro: Any) -> dict[str, Any]:
    """Seconds of all in turn, and what follows from them."""
    (plain, plain_fill), (packed, packed_fill) = (rows_of(sets[kind], options.rows) for kind in KINDS)
    masked = [{**batch, "input_mask": torch.ones_like(batch["input_mask"])} for batch in plain]
    rows = dict(zip(CONTESTANTS, (masked, plain, packed), strict=True))
    seconds: dict[str, list[list[float]]] = {name: [] for name in rows}  # by round, then by micro batch
    for number in range(1 + options.rounds):
        for name in rows:
            seconds[name].append([])
        for at in range(len(plain) if number else 1):
            for name, batches in rows.items():
                start = time.perf_counter()
                model.backward([batches[at]], micro)
                model.module.zero_grad()
                seconds[name][-1].append(time.perf_counter() - start)
        told = ", ".join(f"{name} {sum(found[-1]):.2f} s" for name, found in seconds.items())
        print(f"round {number}: {told}", file=sys.stderr, flush=True)
    return summary(options.rows, {name: found[1:] for name, found in seconds.items()}, rows, plain_fill, packed_fill)


def summary(
    count: int, seconds: dict[str, list[list[float]]], rows: dict[str, Batches], plain_fill: float, packed_fill: float
) -> dict[str, Any]:
    """Speeds, gains and the share of the promise."""
    tokens = {name: tokens_of(rows["plain" if name == "masked" else name]) for name in CONTESTANTS}
    whole = {name: sum(map(median, zip(*found, strict=True))) for name, found in seconds.items()}
    speeds = {name: tokens[name] / whole[name] for name in CONTESTANTS}
    promise = tokens["packed"] / tokens["plain"]
    shares = [
        sum(plain) / sum(packed) for plain, packed in zip(seconds["plain"], seconds["packed"], strict=True)
    ]  # of the promise, round by round: real tokens are as many in each
    return {
        "rows": count,
        "fill": {kind: round(tokens[kind] / count / SEQUENCE, 4) for kind in KINDS},
        "fill_of_the_whole_set": {"plain": round(plain_fill, 4), "packed": round(packed_fill, 4)},
        "real_tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "promised_gain": round(promise, 3),
        "gain": round(speeds["packed"] / speeds["plain"], 3),
        "share_of_promise": round(speeds["packed"] / speeds["plain"] / promise, 3),
        "share_of_promise_by_round": [round(share, 3) for share in shares],
        "gain_over_masked": round(speeds["packed"] / speeds["masked"], 3),
        "share_of_promise_over_masked": round(speeds["packed"] / speeds["masked"] / promise, 3),
        "seconds": {name: [[round(one, 3) for one in some] for some in found] for name, found in seconds.items()},
    }


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """All texts, with one model."""
    from recipe_bert_dp.model.bert import build
    from recipe_bert_dp.settings import BertPretraining
    from recipe_core.engine.memory import keep_freed_memory
    from recipe_core.engine.precision import autocast
    from recipe_core.layouts.parallel import Parallel

    keep_freed_memory()
    torch.manual_seed(1)
    module, loss_of = build(BertPretraining(layers=options.layers))
    model = Parallel(module)

    def micro(module: torch.nn.Module, batch: dict[str, torch.Tensor], number: int) -> Any:
        with autocast("cpu", "bf16_mixed"):
            return loss_of(module(batch), batch)

    with TemporaryDirectory() as temporary:
        folder = options.data or Path(temporary)
        sets = {name: prepared(folder, name, options.text, options.vocabulary) for name in options.texts}
        return {name: measure(found, options, model, micro) for name, found in sets.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="keep the prepared data sets there")
    common.add_text(parser)
    parser.add_argument("--texts", nargs="+", choices=("articles", "paragraphs"), default=["articles", "paragraphs"])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    options = common.parsed(parser)
    load = os.getloadavg()[0]
    what = (
        f"BERT-base width, {options.layers} layers, sequence {SEQUENCE}, forward and backward of micro batches of "
        f"{MICRO_BATCH}; each micro batch by its median over rounds in one process, in turn"
    )
    written = {
        "what": what,
        "results": compare(options),
        "load_before": round(load, 1),
        "threads": torch.get_num_threads(),
        "processor": common.processor(),
        "versions": common.versions("torch"),
    }
    for name, result in written["results"].items():
        print(name, json.dumps({key: value for key, value in result.items() if key != "seconds"}))
    common.write("train_bert_packed", common.with_earlier("train_bert_packed", written, ("results",)))


if __name__ == "__main__":
    main()
