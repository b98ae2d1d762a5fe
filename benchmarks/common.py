"""Parts that the benchmarks share: machine and versions, processes of their own, the floor of matrix products."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratios import falls, rows_of

if TYPE_CHECKING:
    import torch

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("RECIPE_DATA") or Path(__file__).parents[2] / "shared" / "data")
"""Folder with real texts and vocabularies, none of which is part of this repository."""
Shape = tuple[int, int, int]
"""Rows, inner dimension and columns of a product."""


def processor() -> str:
    """Its model, where the system tells it, and how many cores there are."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.machine())}, {os.cpu_count()} cores"


def versions(*names: str) -> dict[str, str]:
    """Those of Python and of the distributions ``names``."""
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def real(name: str) -> Path:
    """Return the path of ``name`` in the folder of real data; if it is missing, exit and tell how to name another."""
    path = DATA / name
    if not path.exists():
        sys.exit(f"{path}: no such file; RECIPE_DATA names the folder with real data (see benchmarks/README.md)")
    return path


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--text`` (JSON lines, perhaps with gzip) and ``--vocabulary`` (of BERT)."""
    parser.add_argument("--text", type=Path, help="default: wiki-sample.jsonl.gz in $RECIPE_DATA")
    parser.add_argument("--vocabulary", type=Path, help="default: bert/vocab.txt in $RECIPE_DATA")


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; text and vocabulary that it does not name are the real ones."""
    options = parser.parse_args()
    options.text = options.text or real("wiki-sample.jsonl.gz")
    options.vocabulary = options.vocabulary or real("bert/vocab.txt")
    return options


def multiplied(cases: Mapping[str, str]) -> list[str]:
    """Return the ``cases``, a precision by name, whose products this processor's instructions do, and none emulates."""
    from recipe_core.engine.precision import multiplies_bf16

    return [name for name, precision in cases.items() if precision == "fp32" or multiplies_bf16("cpu")]


def write(name: str, results: Mapping[str, Any]) -> None:
    """Store ``results`` as results/NAME.json with date and machine, and print which ratios have fallen."""
    stored = list(rows_of(name, read(name)))
    written = {"processor": processor(), **results, "date": f"{date.today():%Y-%m-%d}"}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    for line in falls(stored, rows_of(name, written)):
        print(f"fallen: {line}", file=sys.stderr)


def read(name: str) -> dict[str, Any]:
    """The results that an earlier run stored; empty where there was none."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def with_earlier(name: str, written: dict[str, Any], merged: Iterable[str]) -> dict[str, Any]:
    """``written``, with the cases that an earlier run stored in its parts ``merged``.

    They stay, with their date, only if what was measured, the processor and the versions are the same.
    """
    earlier = read(name)
    if any(earlier.get(key) != written.get(key) for key in ("what", "processor", "versions", "threads")):
        return written
    dated = {"date": earlier.get("date", "-")}
    return {
        **written,
        **{
            part: {**{case: {**dated, **kept} for case, kept in earlier[part].items()}, **written[part]}
            for part in merged
        },
    }


def in_new_process(script: str, *words: str, **environment: str) -> dict[str, Any]:
    """The JSON on the last line that ``script WORDS`` prints, run in a process of its own."""
    line = [sys.executable, script, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def floor(flops: float, products: Iterable[Shape], *, bf16: bool) -> dict[str, Any]:
    """Seconds for ``flops`` of matrix products of a step at this machine's best speed; none can beat it.

    Args:
        flops: of one step.
        products: the shapes in which the model multiplies; the best speed may be that of two square matrices, too.
        bf16: whether the step may multiply in bf16, where that is faster.
    """
    import torch

    shapes = [*products, (2048, 2048, 2048)]
    allowed = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if bf16 else {})
    peaks = {name: _peak(dtype, shapes) for name, dtype in allowed.items()}
    peak = max(peaks.values())
    return {
        **{f"{name}_matmul_peak_gflops": round(value / 1e9) for name, value in peaks.items()},
        "matmul_peak_gflops": round(peak / 1e9),
        "gflop_per_step": round(flops / 1e9, 1),
        "seconds_per_step": round(flops / peak, 4),
    }


def _peak(dtype: torch.dtype, shapes: Iterable[Shape]) -> float:
    """The best FLOP/s of any product of these shapes."""
    import torch

    from recipe_core.engine.precision import multiplies_bf16

    best = 0.0
    for rows, inner, columns in shapes:
        a, b = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
        for _ in range(20 if dtype == torch.float32 or multiplies_bf16("cpu") else 2):  # emulated, it takes long
            start = time.perf_counter()
            torch.nn.functional.linear(a, b)
            best = max(best, 2 * rows * inner * columns / (time.perf_counter() - start))
    return best
