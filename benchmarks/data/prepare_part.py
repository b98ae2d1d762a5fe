"""One part of ``recipe prepare gpt_indexed part=K/N`` on one core, beside the peers that also write Megatron's files.

The peers are Megatron-LM's tools/preprocess_data.py, datatrove's MegatronDocumentTokenizer and NeMo Curator's
MegatronTokenizerWriter, each in an environment of its own that you name; those that you do not name are left out. All
read the same JSON lines of English (english.py) with the same tokenizer, GPT-2's. Ours makes part 2 of 3 of a folder
with three such files, so that it reads exactly one of them, lists all inputs and hashes its own, with tokenizers and
with gigatoken, where that is installed. Every side is a whole command, bound to one core, and has one worker process at
most.

First all sides run once, and must have written the same documents and ids: the .bin files are equal, and the .idx files
of the peers equal the one that follows from our part. Then they take turns. Reported are processor time and wall time
of the command (medians), MB of text per second of processor time, and the median of the ratios of each round. The case
``start`` is the same with less text, where the start of the programs counts; ours also with an empty cache. The case
``beyond the start`` is the difference of the two in each round: what a MB costs in a part of any size.

    PYTHONPATH=benchmarks python benchmarks/data/prepare_part.py --megatron CHECKOUT --megatron-python PYTHON \\
        --datatrove PYTHON --curator PYTHON

``--dry`` tries it out with a little text and a small tokenizer; it stores nothing and needs no real data.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import common
import english
import numpy as np

Times = dict[str, list[float]]
ENGINES = ("tokenizers", "gigatoken")
SCRIPT = Path(__file__).with_name("part_peers.py")
PACKAGES = {
    "megatron": ("torch", "transformers", "tokenizers"),
    "datatrove": ("datatrove", "tokenizers"),
    "curator": ("nemo-curator", "transformers", "tokenizers"),
}
ASK = (
    "import sys, json; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
)


def write_inputs(folder: Path, size: int, dry: bool) -> int:
    """Write three equal files with about ``size`` bytes of text each; returns the bytes of text of one."""
    folder.mkdir()
    text = english.write_lines(folder / "1.jsonl", size, dry)
    for number in (2, 3):
        shutil.copy(folder / "1.jsonl", folder / f"{number}.jsonl")
    return text


def commands(options: argparse.Namespace, inputs: Path, tokenizer: Path, out: Path) -> dict[str, list[str]]:
    """The command line of each side that there is."""
    one = str(inputs / "2.jsonl")
    words = [f"inputs={inputs}", f"tokenizer={tokenizer}", f"output={out}", "part=2/3", "workers=1"]
    recipe = [sys.executable, "-m", "recipe_core.cli", "prepare", "gpt_indexed", *words]
    sides = {engine: [*recipe, f"engine={engine}"] for engine in ENGINES if engine == "tokenizers" or find_spec(engine)}
    if options.megatron:
        sides["megatron"] = [
            options.megatron_python, str(options.megatron / "tools" / "preprocess_data.py"), "--input", one,
            "--output-prefix", str(out / "tokens"), "--tokenizer-type", "HuggingFaceTokenizer",
            "--tokenizer-model", str(tokenizer), "--append-eod", "--workers", "1",
        ]  # fmt: skip
    for side in ("datatrove", "curator"):
        if python := getattr(options, side):
            sides[side] = [python, str(SCRIPT), side, one, str(tokenizer), str(out)]
    return sides


def run(side: str, command: Sequence[str], out: Path, core: int) -> tuple[float, float]:
    """Run a command on one core; returns the seconds of processor and wall time of it and its processes."""
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if side not in ENGINES:  # ours would hide packages of theirs
        environment.pop("PYTHONPATH", None)
        out.mkdir()
    log = out.with_name("log")
    with log.open("wb") as file:
        begin = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        sys.exit(f"{side} ended with {process.returncode}: {' '.join(command)}\n{last}")
    return round(usage.ru_utime + usage.ru_stime, 3), round(wall, 3)


def written(side: str, out: Path) -> tuple[bytes, bytes]:
    """The bytes of the .bin and the .idx file of a side; for our part, those that a merge of it alone would write."""
    if side not in ENGINES:
        (ids,), (index,) = out.glob("*.bin"), out.glob("*.idx")
        return ids.read_bytes(), index.read_bytes()
    dtype = np.dtype(json.loads((out / "manifest.json").read_text(encoding="utf-8"))["same"]["dtype"])
    sizes = np.fromfile(out / "tokens.sizes", np.int32)
    ends = np.fromfile(out / "tokens.documents", np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes[:-1], dtype=np.int64)]) * dtype.itemsize
    code = {"uint16": 8, "int32": 4}[dtype.name]
    header = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, sizes.size, ends.size)
    return (out / "tokens.bin").read_bytes(), header + sizes.tobytes() + starts.tobytes() + ends.tobytes()


def require_equal(sides: Mapping[str, Sequence[str]], out: Path, core: int) -> None:
    """Run every side once; end if one wrote other documents or ids than ours."""
    expected: tuple[bytes, bytes] | None = None
    for side, command in sides.items():
        run(side, command, out, core)
        files = written(side, out)
        expected = expected or files
        for name, mine, first in zip((".bin", ".idx"), files, expected, strict=True):
            if mine != first:
                sys.exit(f"{side}: its {name} file of {len(mine):,} bytes differs from ours of {len(first):,} bytes")


def measure(
    sides: Mapping[str, Sequence[str]], out: Path, options: argparse.Namespace, first: bool
) -> dict[str, Times]:
    """Times of every side, in turns; with ``first``, ours also with an empty cache."""
    turns = dict(sides)
    if first:
        turns |= {f"{engine}, empty cache": sides[engine] for engine in ENGINES if engine in sides}
    found: dict[str, Times] = {name: {"processor": [], "wall": []} for name in turns}
    for number in range(options.rounds):
        for name, command in turns.items():
            side = name.partition(",")[0]
            if name != side:
                shutil.rmtree(os.environ["RECIPE_CACHE"], ignore_errors=True)
            processor, wall = run(side, command, out, options.core)
            found[name]["processor"].append(processor)
            found[name]["wall"].append(wall)
            print(f"  round {number + 1}, {name}: {processor:.2f} s of the processor, {wall:.2f} s", flush=True)
    return found


def beyond(found: Mapping[str, Times], start: Mapping[str, Times]) -> dict[str, Times]:
    """Return the difference of the times of two texts in each round, at least a millisecond."""
    return {
        name: {
            kind: [max(0.001, round(long - short, 3)) for long, short in zip(values, start[name][kind], strict=True)]
            for kind, values in times.items()
        }
        for name, times in found.items()
    }


def summary(found: Mapping[str, Times], size: int) -> dict[str, Any]:
    """Medians, speeds, and how many times faster ours was than each peer in processor time and in wall time."""
    sides = {
        name: {
            **{f"{kind}_s": median(values) for kind, values in times.items()},
            "mb_per_processor_second": round(size / 1e6 / median(times["processor"]), 3),
            "mb_per_second": round(size / 1e6 / median(times["wall"]), 3),
            "all": times,
        }
        for name, times in found.items()
    }
    ours = [name for name in found if name.partition(",")[0] in ENGINES]
    peers = [name for name in found if name not in ours]

    def faster(mine: str, peer: str, kind: str) -> float:
        ratios = (theirs / own for theirs, own in zip(found[peer][kind], found[mine][kind], strict=True))
        return round(median(ratios), 2)

    return {
        "megabytes": round(size / 1e6, 2),
        "rounds": len(next(iter(found.values()))["wall"]),
        "sides": sides,
        **{
            f"times_faster_{kind}": {mine: {peer: faster(mine, peer, kind) for peer in peers} for mine in ours}
            for kind in ("processor", "wall")
        },
    }


def rows(cases: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| case | side | processor time | wall time | MB per processor second | times a peer, processor (wall) |"
    yield "|---|---|---|---|---|---|"
    for case, result in cases.items():
        for name, side in result["sides"].items():
            ratios = (
                f"{peer} {value} ({result['times_faster_wall'][name][peer]})"
                for peer, value in result["times_faster_processor"].get(name, {}).items()
            )
            yield (
                f"| {case}, {result['megabytes']:.3g} MB | {name} | {side['processor_s']:.2f} s | "
                f"{side['wall_s']:.2f} s | {side['mb_per_processor_second']:.2f} | {', '.join(ratios) or '-'} |"
            )


def sentence(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of README.md's row; empty without peers."""
    found = []
    for case, result in cases.items():
        faster = result["times_faster_processor"]
        peers = next(iter(faster.values()))
        ratios = (f"{engine} {', '.join(map(str, by.values()))}" for engine, by in faster.items())
        found += [f"{case}, {result['megabytes']:.0f} MB, times {', '.join(peers)}: {'; '.join(ratios)}"] * bool(peers)
    rounds = cases["part"]["rounds"]
    return f"by processor time, {rounds} round{'s' * (rounds > 1)}. {'. '.join(found)}" if found else ""


def versions_of(sides: Mapping[str, Sequence[str]], options: argparse.Namespace) -> dict[str, Any]:
    """Versions of what each side needs, in its own environment, and the commit of Megatron-LM's checkout."""
    names = {**dict.fromkeys(ENGINES, ("numpy", "tokenizers")), **PACKAGES, "gigatoken": ("gigatoken",)}
    found: dict[str, Any] = {}
    for side, command in sides.items():
        done = subprocess.run([command[0], "-c", ASK, *names[side]], capture_output=True, text=True, check=True)
        found[side] = json.loads(done.stdout)
    if "megatron" in found:
        line = ["git", "-C", str(options.megatron), "rev-parse", "HEAD"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        found["megatron"]["commit"] = done.stdout.strip() or "unknown"
    return found


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both cases, with their equal outputs."""
    english.write_tokenizer(folder / "tokenizer", options.dry)
    found: dict[str, tuple[dict[str, Times], int]] = {}
    sides: dict[str, list[str]] = {}
    for case, size in (("part", options.megabytes), ("start", options.start)):
        print(f"{case}: {size} MB of text", flush=True)
        text = write_inputs(folder / case, round(size * 1e6), options.dry)
        sides = commands(options, folder / case, folder / "tokenizer", folder / "out")
        require_equal(sides, folder / "out", options.core)
        found[case] = measure(sides, folder / "out", options, case == "start"), text
    (long, size), (short, start) = found["part"], found["start"]
    cases = {case: summary(*measured) for case, measured in found.items()}
    cases["beyond the start"] = summary(beyond(long, short), size - start)
    return {
        "what": "one part of three on one core, whole commands: English JSON lines to token files, GPT-2's tokenizer",
        "cases": cases,
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "versions": versions_of(sides, options),
    }


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", type=Path, metavar="CHECKOUT", help="a checkout of Megatron-LM")
    parser.add_argument(
        "--megatron-python", metavar="PYTHON", default=sys.executable,
        help="Python of an environment with what Megatron-LM imports (default: this one)",
    )  # fmt: skip
    parser.add_argument("--datatrove", metavar="PYTHON", help="Python of an environment with datatrove")
    parser.add_argument("--curator", metavar="PYTHON", help="Python of an environment with NeMo Curator")
    parser.add_argument("--megabytes", type=float, default=48, help="text of the part (default: %(default)s)")
    parser.add_argument("--start", type=float, default=8, help="text of the case start (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every side (default: %(default)s)")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core (default: the last)")
    parser.add_argument("--dry", action="store_true", help="a little text and one round; nothing is stored")
    options = parser.parse_args()
    if options.megatron and not (options.megatron / "tools" / "preprocess_data.py").is_file():
        parser.error(
            f"--megatron {options.megatron}: there is no tools/preprocess_data.py; name a checkout of Megatron-LM"
        )
    if options.megatron:
        options.megatron = options.megatron.absolute()
    if options.dry:
        options.megabytes, options.start, options.rounds = 0.2, 0.05, 1
    return options


def main() -> None:
    options = parsed()
    with tempfile.TemporaryDirectory() as name:
        os.environ["RECIPE_CACHE"] = f"{name}/cache"
        result = compare(options, Path(name))
    print("\n".join([*rows(result["cases"]), "", sentence(result["cases"])]))
    if options.dry:
        return
    if not {"megatron", "datatrove", "curator"} & result["versions"].keys():
        print("no peer was named, so nothing is stored; see --help", file=sys.stderr)
        return
    common.write("prepare_part", result)


if __name__ == "__main__":
    main()
