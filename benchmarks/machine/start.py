"""The cost of a run's start: from the command to its first step, in processor time and taken apart.

    PYTHONPATH=benchmarks python benchmarks/machine/start.py [--rounds 3] [--case tiny --case default --case resume]

Cases: ``megatron_gpt:tiny`` and the default ``megatron_gpt``, each with an empty cache (trains a tokenizer, tokenizes
Python's own text) and a warm one, and a run of 124 M parameters in fp32 that resumes from its checkpoint of 1.5 GB.
Each start is a process of its own that ends after its first step. Stages: ``command`` (Python, settings and checks),
``imports`` (PyTorch and the training code), ``model``, ``optimizer``, ``data`` (with an empty cache: making it),
``checkpoint`` (of a run that resumes: hashes, reading), ``first step`` (with the evaluation before).

The peer is a script with PyTorch alone that makes the same 2 layers of 64 and takes a step with its fused AdamW: the
least that any program on PyTorch needs. Processor time is that of all threads, with one thread per operation; wall time
is reported, too. Writes results/start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NoReturn
from unittest.mock import patch

import common

RUN = ("train.device=cpu", "train.save_every=0")
CASES = {
    "tiny": ("megatron_gpt:tiny",),
    "default": ("megatron_gpt",),
    "resume": (
        "megatron_gpt:small", "train.eval_every=0", "train.precision=fp32", "train.global_batch=1",
        "train.micro_batch=1", "data.sequence=64", "train.steps=100",
    ),
}  # fmt: skip
Marks = dict[str, tuple[float, float]]
"""Processor and wall seconds since the start of the process, at the end of each stage."""


def bare() -> NoReturn:
    """Take one step of a small model with PyTorch alone."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    marks: Marks = {"imports": _now()}
    layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Embedding(512, 64), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    marks["model"] = _now()
    ids = torch.randint(512, (8, 65))
    logits = model(ids[:, :-1]) @ model[0].weight.T
    nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    marks["first step"] = _now()
    _end(marks)


def recipe(words: list[str]) -> NoReturn:
    """Run the command and end after its first step."""
    import recipe_core.cli.main as command

    marks: Marks = {}
    start = command._start

    def started(*arguments: Any) -> Any:
        marks["command"] = _now()
        from recipe_core.train import run
        from recipe_core.train.metrics.report import Report

        marks["imports"] = _now()
        for name, stage in (
            ("build_parallel", "model"),
            ("build_optimizer", "optimizer"),
            ("build_samples", "data"),
            ("begin", "checkpoint"),
        ):
            setattr(run, name, _marked(getattr(run, name), stage, marks))

        def first_step(report: Report, step: int) -> None:
            marks["first step"] = _now()
            _end(marks)

        patch.object(Report, "advance", first_step).start()
        return start(*arguments)

    command.__dict__.update(_start=started)
    sys.argv = ["recipe", "run", *words]
    from recipe_core.cli.__main__ import main

    sys.exit(f"no step was taken; exit code {main()}")


def _marked(function: Callable[..., Any], stage: str, marks: Marks) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        answer = function(*arguments, **named)
        marks[stage] = _now()
        return answer

    return call


def _now() -> tuple[float, float]:
    return time.process_time(), time.monotonic() - float(os.environ["STARTED"])


def _end(marks: Marks) -> NoReturn:
    print(json.dumps({"marks": marks}), flush=True)
    os._exit(0)


def stages(marks: Marks, which: int) -> dict[str, float]:
    """Return the seconds of each stage and their sum: processor time (``which`` 0) or wall time (1)."""
    found, before = {}, 0.0
    for stage, mark in marks.items():
        found[stage] = mark[which] - before
        before = mark[which]
    return {**found, "all": before}


def started(*words: str, cache: Path) -> Marks:
    """Run a start in a new process and return its marks."""
    surroundings = {"RECIPE_CACHE": str(cache), "OMP_NUM_THREADS": "1", "STARTED": str(time.monotonic())}
    marks: Marks = common.in_new_process(__file__, *words, **surroundings)["marks"]
    return marks


def measure(case: str, rounds: int, folder: Path) -> dict[str, Any]:
    """Return the stages of every start of a case: with an empty and a warm cache, or of a run that resumes."""
    starts: dict[str, list[Marks]] = {}
    for number in range(rounds):
        out, cache = folder / f"{case}-{number}", folder / f"cache-{case}-{number}"
        line = (*CASES[case], *RUN)
        if case == "resume":
            first = folder / "resume"
            if not first.exists():
                words = ("--whole", "--out", str(first), *line, "train.stop_after=1")
                common.in_new_process(__file__, *words, OMP_NUM_THREADS="1", RECIPE_CACHE=str(folder / "first"))
            starts.setdefault("resume", []).append(
                started("--recipe", "--out", str(first), *line, cache=folder / "first")
            )
        else:
            for kind in ("empty cache", "warm cache"):
                marks = started("--recipe", "--out", str(out / kind[:5]), *line, cache=cache)
                starts.setdefault(f"{case}, {kind}", []).append(marks)
            shutil.rmtree(out)
        shutil.rmtree(cache, ignore_errors=True)
        starts.setdefault("bare", []).append(started("--bare", cache=cache))
    return {name: _medians(marks) for name, marks in starts.items()}


def _medians(marks: list[Marks]) -> dict[str, Any]:
    taken = {kind: [stages(one, which) for one in marks] for which, kind in enumerate(("processor", "clock"))}
    return {
        kind: {stage: round(median(one[stage] for one in several), 3) for stage in several[0]}
        for kind, several in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--recipe", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options, words = parser.parse_known_args()
    if options.bare:
        bare()
    if options.recipe:
        recipe(words)
    if options.whole:
        whole(words)
        return
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in options.case or CASES:
            found = measure(case, options.rounds, Path(folder))
            peer = found.pop("bare")["processor"]["all"]
            for name, stage in found.items():
                cases[name] = {
                    **stage,
                    "rounds": options.rounds,
                    "peer": peer,
                    "times_the_peer": round(stage["processor"]["all"] / peer, 2),
                }
                print(name, cases[name], flush=True)
    written = {
        "what": "from the command to the end of the first step; medians of seconds in processes of their own",
        "processor": common.processor(), "versions": common.versions("torch"), "threads": 1,
        "cases": cases,
    }  # fmt: skip
    common.write("start", common.with_earlier("start", written, ("cases",)))


def whole(words: list[str]) -> None:
    """Run the command to its end."""
    from contextlib import redirect_stdout

    from recipe_core.cli.main import main as command

    with redirect_stdout(sys.stderr):
        code = command(["run", *words])
    print(json.dumps({"exit code": code}))


if __name__ == "__main__":
    main()
