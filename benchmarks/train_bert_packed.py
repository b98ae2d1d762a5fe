"""Phase 2 of BERT-base on a CPU: real tokens/s of packed rows against plain ones, beside what their fill promises.

    python benchmarks/train_bert_packed.py --data FOLDER --text wiki-sample.jsonl.gz --vocabulary vocab.txt
        [--texts articles paragraphs] [--rows 8] [--rounds 3] [--layers 12]

Sequence 512, 80 predictions, micro batch 2, forward and backward with dropout, in the precision of bf16_mixed. Two data
sets are prepared from the text in FOLDER, unless they are there, each plain and packed: ``articles``, whose pairs fill
a row as far as the article does, and ``paragraphs``, where every paragraph is a document of its own. Plain and packed
take turns in one process on random rows, the same each time; the first turn is not counted. The promise is the ratio of
the real tokens in those rows. The optimizer's step is left out: at the batches of phase 2 it takes no time worth
counting. Writes results/train_bert_packed.json beside this file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results" / "train_bert_packed.json"
SEQUENCE, PREDICTIONS, MICRO_BATCH = 512, 80, 2
KINDS = ("plain", "packed")
Batches = list[dict[str, torch.Tensor]]


def prepared(folder: Path, name: str, text: Path, vocabulary: Path) -> dict[str, Path]:
    """The data set ``name``, plain and packed."""
    from recipe_bert_dp.config import PrepareHdf5, PreparePacked
    from recipe_bert_dp.pack import prepare as pack
    from recipe_bert_dp.prepare import prepare

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


def rows_of(folder: Path, count: int) -> Batches:
    """The first ``count`` rows of an epoch, in micro batches."""
    from recipe_bert_dp.config import BertHdf5
    from recipe_bert_dp.data import build
    from recipe_core.parallel import Run
    from recipe_core.settings import Train

    run = Run(
        device=torch.device("cpu"), mesh=None, rank=0, world_size=1, local_rank=0, dp_rank=0, dp_size=1, train=Train(),
        cache=folder,
    )  # fmt: skip
    samples = build(BertHdf5(files=(str(folder),), sequence=SEQUENCE, max_predictions=PREDICTIONS), run)
    found = (samples.read("train", start, MICRO_BATCH) for start in range(0, count, MICRO_BATCH))
    return [{name: values.long() for name, values in batch.items()} for batch in found]


def tokens_of(batches: Batches) -> int:
    """Tokens that are no padding."""
    return sum(int((batch["input_mask"] != 0).sum()) for batch in batches)


def measure(sets: dict[str, Path], options: argparse.Namespace, model: Any, micro: Any) -> dict[str, Any]:
    """Seconds of both kinds in turn, and what follows from them."""
    rows = {kind: rows_of(folder, options.rows) for kind, folder in sets.items()}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(1 + options.rounds):
        for kind, batches in rows.items():
            used = batches if number else batches[:1]
            start = time.perf_counter()
            model.backward(used, micro)
            model.module.zero_grad()
            if number:
                seconds[kind].append(time.perf_counter() - start)
                print(f"round {number}, {kind}: {seconds[kind][-1]:.2f} s", file=sys.stderr, flush=True)
    tokens = {kind: tokens_of(batches) for kind, batches in rows.items()}
    promise = tokens["packed"] / tokens["plain"]
    gains = [promise * plain / packed for plain, packed in zip(*seconds.values(), strict=True)]
    return {
        "rows": options.rows,
        "fill": {kind: round(count / options.rows / SEQUENCE, 4) for kind, count in tokens.items()},
        "real_tokens_per_second": {kind: round(tokens[kind] / median(seconds[kind]), 1) for kind in KINDS},
        "promised_gain": round(promise, 3),
        "gain": round(median(gains), 3),
        "share_of_promise": round(median(gains) / promise, 3),
        "lowest_share_of_promise": round(min(gains) / promise, 3),
        "seconds": {kind: [round(one, 3) for one in seconds[kind]] for kind in KINDS},
    }


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """All texts, with one model."""
    from recipe_bert_dp.model import build
    from recipe_bert_dp.model_config import BertPretraining
    from recipe_core.engine.memory import keep_freed_memory
    from recipe_core.parallel import Parallel
    from recipe_core.precision import autocast

    keep_freed_memory()
    torch.manual_seed(1)
    module, loss_of = build(BertPretraining(layers=options.layers))
    model = Parallel(module)

    def micro(module: torch.nn.Module, batch: dict[str, torch.Tensor], number: int) -> Any:
        with autocast("cpu", "bf16_mixed"):
            return loss_of(module(batch), batch)

    sets = {name: prepared(options.data, name, options.text, options.vocabulary) for name in options.texts}
    return {name: measure(found, options, model, micro) for name, found in sets.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--texts", nargs="+", choices=("articles", "paragraphs"), default=["articles", "paragraphs"])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    written = {
        "what": f"BERT-base width, {options.layers} layers, sequence {SEQUENCE}, forward and backward of micro batches "
        f"of {MICRO_BATCH}; medians over rounds in one process, in turn",
        "results": compare(options),
        "load_before": round(load, 1),
        "threads": torch.get_num_threads(),
        "processor": f"{next(named, platform.machine())}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
    for name, result in written["results"].items():
        print(name, json.dumps(result))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
