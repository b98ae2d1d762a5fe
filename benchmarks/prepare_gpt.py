"""Text to Megatron's token files: ``recipe prepare gpt_indexed`` against what Megatron-LM's preprocess_data does.

The input is the sample of Wikipedia in RECIPE_DATA (12 MB of JSON lines when unpacked), or with --large the same again
and again to 100 MB; both sides read the unpacked file. The tokenizer is GPT-2's, from vocab.json and merges.txt.

The peer is the loop of preprocess_data (2026): a pool of 2 processes, pool.imap of an encoder per line with chunks of
32, transformers' GPT2TokenizerFast in each process, and megatron-core's IndexedDatasetBuilder in the parent. Ours is
the function that the command calls, with tokenizers on 2 workers, and with gigatoken, which chooses its processes by
itself. Each run is in a new process, forked after the imports of both sides. All else counts: starting workers, loading
the tokenizer, comparing the engines, writing, bringing it to the disk, hashing inputs and outputs. Every side must have
written the same bytes. What a side needs for a single document, measured in each turn, tells how much of it is start.
Memory is that of the largest process of the command, measured apart.

Run it in an environment that also has megatron-core, transformers and gigatoken:

    RECIPE_DATA=... python benchmarks/prepare_gpt.py [--large]
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import multiprocessing
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from recipe_megatron_gpt.config import GptPrepare
from recipe_megatron_gpt.prepare import prepare

RESULTS = Path(__file__).parent / "results" / "prepare_gpt.json"
WORKERS, LARGE = 2, 100_000_000
Side = Callable[[Path, Path, Path], None]
"""Makes token files: of this input, by the tokenizer in this folder, in this new folder."""


class Encoder:
    """What preprocess_data runs for each line."""

    tokenizer: Any
    end: int

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def initializer(self) -> None:
        from transformers import GPT2TokenizerFast

        Encoder.tokenizer = GPT2TokenizerFast.from_pretrained(self.folder)
        Encoder.end = Encoder.tokenizer.eos_token_id

    def encode(self, line: str) -> tuple[dict[str, list[int]], dict[str, list[int]], int]:
        ids = Encoder.tokenizer(json.loads(line)["text"]).input_ids
        ids.append(Encoder.end)
        return {"text": ids}, {"text": [len(ids)]}, len(line)


def megatron(source: Path, tokenizer: Path, out: Path) -> None:
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    out.mkdir()
    encoder = Encoder(str(tokenizer))
    with (
        source.open(encoding="utf-8") as file,
        multiprocessing.get_context("fork").Pool(WORKERS, initializer=encoder.initializer) as pool,
    ):
        builder = IndexedDatasetBuilder(str(out / "tokens.bin"), dtype=DType.optimal_dtype(50_257))
        for document, lengths, _ in pool.imap(encoder.encode, file, 32):
            builder.add_document(document["text"], lengths["text"])
        builder.finalize(str(out / "tokens.idx"))


def tokenizers(source: Path, tokenizer: Path, out: Path) -> None:
    prepare(
        GptPrepare(
            inputs=(str(source),), tokenizer=str(tokenizer), output=str(out), engine="tokenizers", workers=WORKERS
        )
    )


def gigatoken(source: Path, tokenizer: Path, out: Path) -> None:
    prepare(GptPrepare(inputs=(str(source),), tokenizer=str(tokenizer), output=str(out), engine="gigatoken"))


def seconds(make: Side, *paths: Path) -> tuple[float, float]:
    """Wall and processor time of one run in a process of its own, where nothing is loaded but what is imported here."""
    process = multiprocessing.get_context("fork").Process(target=make, args=paths)
    begin, busy = time.perf_counter(), processor_time()
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{make.__name__} ended with {process.exitcode}")
    return time.perf_counter() - begin, processor_time() - busy


def processor_time() -> float:
    """Of all processes that have ended: what a busy machine changes less than the wall time."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def memory(engine: str, source: Path, tokenizer: Path, out: Path) -> int:
    """Megabytes of the largest process of the command."""
    line = [f"inputs={source}", f"tokenizer={tokenizer}", f"output={out}", f"engine={engine}"]
    command = [sys.executable, "-m", "recipe_core", "prepare", "gpt_indexed", *line]
    # Asked of a small process between: a child of this large one would count as large before it starts its program.
    ask = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True, check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", ask, *command], capture_output=True, text=True, check=True)
    shutil.rmtree(out)
    return round(int(done.stdout) / 1024)


class Turn(NamedTuple):
    """Seconds of one side in one turn."""

    wall: float
    processors: float
    start: float
    """Wall time for a single document."""

    def __str__(self) -> str:
        return f"{self.wall:.2f} s, {self.start:.2f} s of them to start; {self.processors:.2f} s of processors"


def measure(source: Path, tokenizer: Path, folder: Path, pairs: int) -> dict[str, list[Turn]]:
    """Time of every side, in turns, so that a slow moment of the machine meets all."""
    sides: dict[str, Side] = {side.__name__: side for side in (megatron, tokenizers, gigatoken)}
    found: dict[str, list[Turn]] = {name: [] for name in sides}
    expected: tuple[bytes, bytes] | None = None
    with source.open("rb") as file:
        (folder / "one.jsonl").write_bytes(file.readline())
    for _ in range(pairs):
        for name, make in sides.items():
            out = folder / name
            start, _ = seconds(make, folder / "one.jsonl", tokenizer, out)
            shutil.rmtree(out)
            found[name].append(Turn(*seconds(make, source, tokenizer, out), start))
            data = (out / "tokens.bin").read_bytes(), (out / "tokens.idx").read_bytes()
            expected = expected or data
            if data != expected:
                raise SystemExit(f"{name} wrote other bytes than megatron")
            shutil.rmtree(out)
            print(f"  {name}: {found[name][-1]}", flush=True)
    return found


def ratio(peer: list[Turn], mine: list[Turn], figure: Callable[[Turn], float]) -> float:
    """Median over the turns: both sides of each saw the same machine."""
    return round(statistics.median(figure(one) / figure(other) for one, other in zip(peer, mine, strict=True)), 2)


def unpack(data: Path, target: Path, large: bool) -> int:
    """Write the input; returns its bytes of text, as UTF-8."""
    with gzip.open(data / "wiki-sample.jsonl.gz", "rb") as file:
        lines = file.readlines()
    text = sum(len(json.loads(line)["text"].encode()) for line in lines)
    times = round(LARGE / text) if large else 1
    with target.open("wb") as file:
        for _ in range(times):
            file.writelines(lines)
    return text * times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="repeat the sample to 100 MB")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    for name in ("megatron.core.datasets.indexed_dataset", "transformers.models.gpt2.tokenization_gpt2", "gigatoken"):
        import_module(name)
    data = Path(os.environ["RECIPE_DATA"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = unpack(data, folder / "text.jsonl", options.large) / 1e6
        paths = folder / "text.jsonl", data / "gpt2"
        found = measure(*paths, folder, options.pairs)
        peaks = {engine: memory(engine, *paths, folder / "memory") for engine in ("tokenizers", "gigatoken")}
    speeds = {name: size / statistics.median(turn.wall for turn in turns) for name, turns in found.items()}
    figures: dict[str, Callable[[Turn], float]] = {
        "times_megatron": lambda turn: turn.wall,
        "times_megatron_without_start": lambda turn: turn.wall - turn.start,
        "times_megatron_by_processor_time": lambda turn: turn.processors,
    }
    ratios = {
        what: {name: ratio(found["megatron"], turns, figure) for name, turns in found.items()}
        for what, figure in figures.items()
    }
    for name, speed in speeds.items():
        print(f"{name:12}{speed:8.1f} MB/s  " + ", ".join(f"{what} {ratios[what][name]}" for what in ratios))
    print("largest process: " + ", ".join(f"{engine} {peak} MB" for engine, peak in peaks.items()))
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[f"{size:.0f} MB"] = {
        "what": f"{size:.1f} MB of text to token files by GPT-2's tokenizer, seconds; {WORKERS} workers",
        "turns": {name: [turn._asdict() for turn in turns] for name, turns in found.items()},
        "megabytes_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        **ratios,
        "largest_process_megabytes": peaks,
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("megatron-core", "transformers", "tokenizers", "gigatoken")},
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
