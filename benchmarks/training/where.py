"""Where a step goes: the operations of a run's steps by torch.profiler, as a table.

    PYTHONPATH=benchmarks python benchmarks/training/where.py megatron_gpt:small train.precision=fp32 [--steps 2]
        [--trace trace.json]
    PYTHONPATH=benchmarks python benchmarks/training/where.py bert_dp:base

Takes the words of ``recipe run``, trains one step to warm up and then ``--steps`` under the profiler, on the CPU, with
micro batches of ``--samples`` and a global batch of two of them. Shares are of the time that operations took by
themselves on the main thread and the threads of backward; what is between them (Python, waiting for data) is ``beside``
it. A trace shows the same as a flame graph: open it in https://ui.perfetto.dev.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

FAMILIES = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "mkldnn::"),
    "attention": ("aten::_scaled_dot_product", "aten::softmax", "aten::_softmax", "_BlockAttention"),
    "optimizer": ("aten::_fused_adamw", "aten::_foreach", "aten::linalg_vector_norm"),
    "loss": ("aten::logsumexp", "aten::_log_softmax", "aten::nll_loss", "aten::exp", "aten::gather", "aten::amax"),
    "GELU": ("aten::gelu",),
    "norms": ("aten::native_layer_norm",),
    "dropout": ("aten::native_dropout", "aten::bernoulli_", "aten::random_", "aten::masked_fill"),
    "embeddings": ("aten::embedding", "aten::index"),
    "copies and types": ("aten::copy_", "aten::_to_copy", "aten::clone", "aten::cat", "aten::contiguous"),
    "filling and adding": ("aten::fill_", "aten::zero_", "aten::add", "aten::mul", "aten::sum", "aten::div"),
}
"""Beginnings of the names of operations; the first family that fits counts."""
OTHERS = "other operations"


def family(name: str) -> str:
    """The family of an operation."""
    return next((key for key, starts in FAMILIES.items() if name.startswith(starts)), OTHERS)


def measure(words: list[str], steps: int, trace: Path | None) -> tuple[dict[str, float], float]:
    """Milliseconds of a step by family, and those of the whole step."""
    from torch.profiler import ProfilerActivity, profile

    from recipe_core.hooks.registry import load
    from recipe_core.train.run import run
    from recipe_core.train.start.check import checked_job
    from recipe_core.train.step import Stepper, StepResult

    take_step, profiler, taken = Stepper.step, profile(activities=[ProfilerActivity.CPU]), []

    def stepping(stepper: Stepper, *, last: bool) -> StepResult | None:
        if stepper.progress.step == 1:
            profiler.start()
        began = time.perf_counter()
        done = take_step(stepper, last=last)
        taken.append(time.perf_counter() - began)
        if last:
            profiler.stop()
        return done

    line = [*words, "train.device=cpu", f"train.steps={1 + steps}", "train.eval_every=0", "train.save_every=0"]
    with tempfile.TemporaryDirectory() as folder, patch.object(Stepper, "step", stepping):
        out = Path(folder) / "run"
        job = checked_job(load(), words[0], [*line[1:], "train.check_replicas_at_save=false"], 1, out)
        with contextlib.redirect_stdout(sys.stderr):
            run(job, out)
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    found: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        found[family(event.key)] += event.self_cpu_time_total / 1000 / steps
        if family(event.key) == OTHERS:
            print(f"{event.self_cpu_time_total / 1000 / steps:10.2f} ms  {event.key}", file=sys.stderr)
    return dict(found), 1000 * sum(taken[1:]) / steps


def table(found: dict[str, float], whole: float) -> str:
    """The families in Markdown, the largest first."""
    rows = sorted(found.items(), key=lambda item: -item[1])
    lines = ["| where | ms a step | share |", "| --- | --- | --- |"]
    lines += [f"| {name} | {value:,.1f} | {value / whole:.1%} |" for name, value in rows if value / whole >= 0.001]
    beside = max(0.0, whole - sum(found.values()))
    return "\n".join(
        [*lines, f"| beside operations | {beside:,.1f} | {beside / whole:.1%} |", f"| a step | {whole:,.1f} | |"]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--trace", type=Path)
    options, words = parser.parse_known_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    batch = [f"train.micro_batch={options.samples}", f"train.global_batch={2 * options.samples}"]
    given: dict[str, Any] = dict(word.split("=", 1) for word in words[1:])
    print(table(*measure([words[0], *batch, *(f"{k}={v}" for k, v in given.items())], options.steps, options.trace)))


if __name__ == "__main__":
    main()
