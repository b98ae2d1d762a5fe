"""Training on one GPU, compared with the peers and with the limits of the machine: one command, which can resume.

    python benchmarks/gpu --out gpu-results [--only gpt2-124m] [--contestant recipe] [--minutes 9] [--retry]
    python benchmarks/gpu --out /tmp/dry --dry

Cases (cases.py): BERT-large at 128 and at 512 (ours packed), GPT-2 124M, GPT 1.3B and 6.7B, fine-tuning of BERT-base
on pairs of sentences; fp32 weights under bf16 autocast. Contestants: the recipe as `recipe run` trains it, with and
without train.compile, and with it in fp8 where torchao is installed; transformers' model of the same sizes under its
Trainer (fused AdamW, SDPA, workers), with and without torch.compile; megatron-core's GPTModel, where it is installed.
All take the same micro batches. The roof (roof.py) is the measured time of the model's matrix products and of the
optimizer's memory traffic. All data is generated.

Each part runs in a process of its own and writes its result to OUT/CASE.json; the same command resumes with the missing
parts. A part that fails is a row with the reason (its output is in OUT/logs); --retry repeats it. At the end, or when
the minutes are over, OUT/gpu.json and OUT/gpu.md hold all results so far, and OUT/traces a trace of each part. --dry
uses tiny sizes on the CPU, to test the script; its figures mean nothing. Needs the plugins bert_dp, megatron_gpt and
hf_finetune; copy the results of a GPU to benchmarks/results/ by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import part
import table
from cases import CASES, case_of
from process import measured

sys.path.append(str(Path(__file__).parents[1]))
from common import processor

PART_SECONDS = 420.0
"""Time limit of a part."""
LEAST_SECONDS = 60.0
"""No part starts with less time left."""


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.with_suffix(".part").write_text(text, encoding="utf-8")
    path.with_suffix(".part").rename(path)


def gpu() -> str:
    """Return the driver's name of the first device, empty if there is none, without initialising CUDA."""
    try:
        line = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""


def machine(dry: bool) -> dict[str, Any]:
    """Return device, processor and versions."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "accelerate", "megatron-core", "transformer-engine"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    device = "CPU, tiny sizes: the figures mean nothing" if dry else gpu()
    return {"device": device, "processor": processor(), "versions": versions, "date": time.strftime("%Y-%m-%d")}


def case_file(out: Path, name: str, here: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of a case in ``out``; none if they are from another machine or other versions."""
    path = out / f"{name}.json"
    if path.is_file():
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if all(found["machine"].get(key) == here[key] for key in ("device", "processor", "versions")):
            return found
    return {"machine": here, "parts": {}}


def campaign(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the missing parts until the time is over; return all results."""
    end, here = time.monotonic() + 60 * options.minutes, machine(options.dry)
    files = {name: case_file(options.out, name, here) for name in options.only or [case.name for case in CASES]}
    for name, found in files.items():
        for one in wanted(options, name):
            earlier = found["parts"].get(one)
            if earlier is not None and not (options.retry and "failed" in earlier):
                continue
            left = end - time.monotonic()
            if left < (0 if options.dry else LEAST_SECONDS):
                return files
            log = options.out / "logs" / f"{name}.{one}.txt"
            result = measured(
                part.run, (name, one, options.out, options.seconds, options.dry), min(left, PART_SECONDS), log
            )
            if result is None and left < PART_SECONDS:
                return files  # the next call starts it again
            found["parts"][one] = result or {"failed": f"took longer than {PART_SECONDS:.0f} s"}
            write(options.out / f"{name}.json", json.dumps(found, indent=2) + "\n")
            print(f"{name}, {one}: {_told(found['parts'][one])}", flush=True)
    return files


def wanted(options: argparse.Namespace, name: str) -> list[str]:
    """The parts of the case ``name`` that the command line asks for: its roof, and all contestants or those named."""
    parts = part.parts_of(case_of(name, dry=options.dry))
    return [one for one in parts if not options.contestant or one == part.ROOF or one in options.contestant]


def _told(result: dict[str, Any]) -> str:
    if "failed" in result:
        return f"failed: {result['failed']}"
    speed = f"{result['per_second']:,.1f} {result['unit']}, " if "per_second" in result else ""
    return f"{speed}{result['seconds_per_step']:.4f} s a step"


def conclude(options: argparse.Namespace, cases: dict[str, Any]) -> None:
    """Write and print the table."""
    results = {"what": "Training on one GPU", "machine": machine(options.dry), "cases": {
        name: {**found, "compared": table.summary(found["parts"])} for name, found in cases.items()
    }}  # fmt: skip
    write(options.out / "gpu.json", json.dumps(results, indent=2) + "\n")
    write(options.out / "gpu.md", table.markdown(results))
    print(table.markdown(results))
    missing = [
        f"{name}, {one}" for name, found in cases.items() for one in wanted(options, name) if one not in found["parts"]
    ]  # fmt: skip
    if missing:
        print(f"no time was left for {len(missing)} parts ({missing[0]} is next); the same command goes on with them")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; what is in it is not repeated")
    parser.add_argument(
        "--only", action="append", choices=[case.name for case in CASES], help="a case; may be repeated"
    )
    parser.add_argument(
        "--contestant", action="append", choices=list(part.CONTESTANTS), help="a contestant; may be repeated"
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="time the steps of a part so long (default: 12)")
    parser.add_argument("--minutes", type=float, default=9.0, help="begin nothing after so long (default: 9)")
    parser.add_argument("--retry", action="store_true", help="try parts again that failed")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args()
    options.out = options.out.resolve()
    if not options.dry and not gpu():
        parser.error("no NVIDIA device is here (nvidia-smi names none); --dry takes tiny sizes on the CPU")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.out / "inductor")
    options.out.mkdir(parents=True, exist_ok=True)
    conclude(options, campaign(options))


if __name__ == "__main__":
    main()
