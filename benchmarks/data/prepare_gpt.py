"""Text to Megatron's token files by GPT-2's tokenizer: ``recipe prepare gpt_indexed`` against preprocess_data.py.

The input is wiki-sample.jsonl.gz in $RECIPE_DATA (12 MB of text as JSON lines), or with --large the same again and
again to 100 MB; all sides read the unpacked file. The peer has a pool of 2 processes; ours, with tokenizers and with
gigatoken, chooses by itself how many it uses. Every side must have written the same bytes. In each turn, each side runs

- as a command: the interpreter, every import, loading the tokenizer, the work, and at ours bringing files to the disk
  and hashing;
- ours also as a first command, with an empty cache: it reads the tokenizer by both libraries and compares their ids,
  which later ones on the same input recall;
- as a function that is called where all imports of both sides are done (a forked process, in which the garbage
  collector passes over what they left);
- as a command on a single document, which tells how much of it is start (not with --large).

With --memory, the largest process of our commands on 20, 100 and 400 MB, and nothing else.

It needs an environment that also has megatron-core, transformers and gigatoken:

    PYTHONPATH=benchmarks python benchmarks/data/prepare_gpt.py [--large | --memory]
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import common
import preprocess_data

from recipe_megatron_gpt.prepare.indexed import prepare
from recipe_megatron_gpt.settings import GptPrepare

LARGE = 100_000_000
MEMORY = (20_000_000, 100_000_000, 400_000_000)
ENGINES = ("tokenizers", "gigatoken")
ASK = (
    "import resource, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True, check=True); "
    "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
)
"""A small process between: a child of a large one would count as large before it starts its program."""


def command(side: str, source: Path, tokenizer: Path, out: Path) -> list[str]:
    """The command line of a side."""
    if side == "megatron":
        return [sys.executable, preprocess_data.__file__, str(source), str(tokenizer), str(out)]
    words = [f"inputs={source}", f"tokenizer={tokenizer}", f"output={out}", f"engine={side}"]
    return [sys.executable, "-m", "recipe_core.cli", "prepare", "gpt_indexed", *words]


def call(side: str, source: Path, tokenizer: Path, out: Path) -> None:
    """The same as a function."""
    if side == "megatron":
        preprocess_data.preprocess(source, tokenizer, out)
    else:
        prepare(GptPrepare(inputs=(str(source),), tokenizer=str(tokenizer), output=str(out), engine=side))  # type: ignore[arg-type]


def run_command(side: str, *paths: Path) -> None:
    subprocess.run(command(side, *paths), capture_output=True, check=True)


def run_function(side: str, *paths: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=call, args=(side, *paths))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{side} ended with {process.exitcode}")


def seconds(run: Callable[..., None], side: str, source: Path, tokenizer: Path, out: Path) -> float:
    """Wall time; the output stays."""
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    run(side, source, tokenizer, out)
    return round(time.perf_counter() - begin, 3)


def measure(source: Path, tokenizer: Path, folder: Path, turns: int, large: bool) -> dict[str, list[dict[str, float]]]:
    """Seconds of every side, in turns, so that a slow moment of the machine meets all."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in ("megatron", *ENGINES)}
    one, out = folder / "one.jsonl", folder / "out"
    with source.open("rb") as file:
        one.write_bytes(file.readline())
    expected: tuple[bytes, bytes] | None = None
    for _ in range(turns):
        for side, times in found.items():
            turn: dict[str, float] = {}
            if side != "megatron":
                shutil.rmtree(os.environ["RECIPE_CACHE"], ignore_errors=True)
                turn["first"] = seconds(run_command, side, source, tokenizer, out)
            if not large:
                turn["start"] = seconds(run_command, side, one, tokenizer, out)
            for name, run in (("command", run_command), ("function", run_function)):
                turn[name] = seconds(run, side, source, tokenizer, out)
                data = (out / "tokens.bin").read_bytes(), (out / "tokens.idx").read_bytes()
                expected = expected or data
                if data != expected:
                    raise SystemExit(f"{side} wrote other bytes than megatron")
            times.append(turn)
            print(f"  {side}: " + ", ".join(f"{name} {value:.2f} s" for name, value in turn.items()), flush=True)
    return found


def unpack(target: Path, size: int | None) -> int:
    """Write the input, once or as often as ``size`` bytes of text take; returns its bytes of text, as UTF-8."""
    with gzip.open(common.real("wiki-sample.jsonl.gz"), "rb") as file:
        lines = file.readlines()
    text = sum(len(json.loads(line)["text"].encode()) for line in lines)
    times = round(size / text) if size else 1
    with target.open("wb") as file:
        for _ in range(times):
            file.writelines(lines)
    return text * times


def peak(engine: str, source: Path, tokenizer: Path, out: Path) -> int:
    """Megabytes of the largest process of our command."""
    line = [sys.executable, "-c", ASK, *command(engine, source, tokenizer, out)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    shutil.rmtree(out)
    return round(int(done.stdout) / 1024)


def memory(folder: Path) -> dict[str, Any]:
    """The peaks for each size and engine."""
    found: dict[str, Any] = {"what": "megabytes of the largest process of the command"}
    for size in MEMORY:
        text = unpack(folder / "text.jsonl", size)
        paths = folder / "text.jsonl", common.real("gpt2"), folder / "out"
        found[f"{text / 1e6:.0f} MB"] = {engine: peak(engine, *paths) for engine in ENGINES}
        print(f"  {text / 1e6:.0f} MB: {found[f'{text / 1e6:.0f} MB']}", flush=True)
    return found


def speed(folder: Path, turns: int, large: bool) -> tuple[str, dict[str, Any]]:
    """Its name in the results, and what was measured."""
    preprocess_data.imports()
    import_module("gigatoken")
    gc.freeze()
    size = unpack(folder / "text.jsonl", LARGE if large else None) / 1e6
    found = measure(folder / "text.jsonl", common.real("gpt2"), folder, turns, large)
    ratios = {}
    for what, against in (("command", "command"), ("first", "command"), ("function", "function")):
        peer = statistics.median(turn[against] for turn in found["megatron"])
        mine = {side: statistics.median(turn[what] for turn in found[side]) for side in ENGINES}
        name = f"as {what}{' command' * (what == 'first')}"
        ratios[f"times_megatron_{name.replace(' ', '_')}"] = {
            side: round(peer / value, 2) for side, value in mine.items()
        }
        print(f"{name}: " + ", ".join(f"{side} {peer / value:.1f} times megatron" for side, value in mine.items()))
    return f"{size:.0f} MB", {
        "what": f"{size:.1f} MB of text to token files by GPT-2's tokenizer, seconds",
        "turns": found,
        **ratios,
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("megatron-core", "transformers", "tokenizers", "gigatoken")},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="repeat the sample to 100 MB")
    parser.add_argument("--memory", action="store_true", help="measure the memory, and nothing else")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        os.environ["RECIPE_CACHE"] = f"{name}/cache"
        if options.memory:
            key, found = "memory", memory(Path(name))
        else:
            key, found = speed(Path(name), options.turns, options.large)
    common.write("prepare_gpt", {**common.read("prepare_gpt"), key: found})


if __name__ == "__main__":
    main()
