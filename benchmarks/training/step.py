"""Costs of a step beside the model's arithmetic: tiny GPT under `recipe run`'s loop against a bare loop.

    PYTHONPATH=benchmarks python benchmarks/training/step.py [--steps 300] [--rounds 3]

Both train the same 2 layers of 64 in fp32 with one thread, four micro batches a step, clipping at 1 and PyTorch's fused
AdamW. The bare loop is PyTorch alone: tokens in memory, whole logits, no metrics. They take turns step by step in one
process, so that a busy machine slows both; the processor time of the main thread counts. ``every step`` writes a row of
metrics, an event for TensorBoard and a line at each step, ``every 50`` at each fiftieth. Needs recipe-megatron-gpt.
Writes results/step.json beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import common
import torch
import torch.nn.functional as F

MICRO_BATCHES, UNCOUNTED = 4, 30


def bare() -> Callable[[], None]:
    """A step of the bare loop."""
    from recipe_megatron_gpt.model.gpt import build
    from recipe_megatron_gpt.settings import Gpt

    sizes = Gpt(
        layers=2, hidden=64, heads=4, positions=64, vocabulary=512, dropout=0.0, attention_dropout=0.0
    )  # fmt: skip
    module, _ = build(sizes)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=0.1, fused=True)
    ids = [torch.randint(512, (2, 65)) for _ in range(64)]

    def step() -> None:
        for _ in range(MICRO_BATCHES):
            batch = ids.pop(0)
            ids.append(batch)
            logits = module({"tokens": batch[:, :-1]})
            (F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / MICRO_BATCHES).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def run(log_every: int, steps: int) -> dict[str, float]:
    """Median milliseconds of a step of each, in turn, in this process."""
    from recipe_core.hooks.registry import load
    from recipe_core.train.metrics.report import Report
    from recipe_core.train.run import run as train
    from recipe_core.train.start.check import checked_job

    torch.set_num_threads(1)
    other, began = bare(), 0.0
    seconds: dict[str, list[float]] = {"recipe": [], "bare": []}

    def take_turns(report: Report, step: int) -> None:
        nonlocal began
        end = time.thread_time()
        other()
        after = time.thread_time()
        if step > UNCOUNTED:
            seconds["recipe"].append(end - began)
            seconds["bare"].append(after - end)
        began = time.thread_time()

    words = (
        "train.device=cpu", f"train.steps={UNCOUNTED + steps}", f"train.log_every={log_every}", "train.eval_every=0",
        "train.save_every=0",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, patch.object(Report, "advance", take_turns):
        out = Path(folder) / "run"
        with contextlib.redirect_stdout(io.StringIO()):
            train(checked_job(load(), "megatron_gpt:tiny", words, 1, out), out)
    return {name: 1000 * median(found) for name, found in seconds.items()}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run, options.steps)))
        return
    results: dict[str, Any] = {}
    for name, every in (("every step", 1), ("every 50", 50)):
        words = ("--run", str(every), "--steps", str(options.steps))
        rounds = [common.in_new_process(__file__, *words, OMP_NUM_THREADS="1") for _ in range(options.rounds)]
        ratios = sorted(one["recipe"] / one["bare"] for one in rounds)
        results[name] = {
            "recipe_ms": round(median(one["recipe"] for one in rounds), 2),
            "bare_ms": round(median(one["bare"] for one in rounds), 2),
            "ratio": round(median(ratios), 3), "lowest": round(ratios[0], 3), "highest": round(ratios[-1], 3),
        }  # fmt: skip
        print(name, results[name])
    common.write("step", {
        "what": "tiny GPT, milliseconds of processor time a step, beside a bare loop in turn", "goal": "ratio 1.08",
        "results": results, "rounds": options.rounds, "steps": options.steps, "processor": common.processor(),
        "versions": common.versions("torch"),
    })  # fmt: skip


if __name__ == "__main__":
    main()
