"""Memory of a process under layouts that divide the model, against the ideal: half of what is split in two.

A GPT of some 45 million parameters is trained for three steps in fp32 with AdamW, on one sample of 64 tokens a micro
batch, so that weights, gradients and optimizer states (16 bytes a parameter) are nearly all there is. Measured is

- held: bytes of weights and gradients of each process when a step's backward pass is done;
- peak: resident memory of rank 0 at its highest during the steps, less what the process had before it built the model.

The ideal halves what the layout splits in two: under fsdp and zero1's optimizer states everything, under tp what the
tensor plan cuts, under pp the blocks. For the peak, the ideal is that part of single's own peak which is such tensors,
split, and the rest of it as it is.

    PYTHONPATH=benchmarks python benchmarks/checkpoints/layout_memory.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import common
import torch
from torch import Tensor

from recipe_core.engine.memory import peak_resident
from recipe_core.hooks.registry import load
from recipe_core.layouts.parallel import Parallel
from recipe_core.layouts.reduction.reducer import local_shard
from recipe_core.settings.job import Job, resolve
from recipe_core.testing import spawn
from recipe_core.train import run as running
from recipe_core.train.metrics.curves import METRICS, read_rows

WORDS = [
    "model.layers=8", "model.hidden=640", "model.heads=10", "model.positions=64", "model.vocabulary=8192",
    "data.sequence=64", "data.vocabulary=8192", "train.steps=4", "train.stop_after=3", "train.global_batch=2",
    "train.micro_batch=1", "train.eval_every=0", "checkpoint=dcp",
]  # fmt: skip
LAYOUTS = {
    "single": (1, ["layout=single"]),
    "ddp 2": (2, ["layout=ddp"]),
    "zero1 2": (2, ["layout=zero1"]),
    "fsdp 2": (2, ["layout=fsdp"]),
    "tp 2": (2, ["layout=tp"]),
    "tp 2, sequence": (2, ["layout=tp", "layout.sequence_parallel=true"]),
    "pp 2": (2, ["layout=pp"]),
}


def measure(words: list[str], folder: str) -> dict[str, int]:
    """One run; what this process held and took."""
    torch.set_num_threads(1)
    job = resolve(load(), "megatron_gpt:tiny", [*WORDS, *words])
    held: list[int] = []
    clip = Parallel.clip

    def counting(self: Parallel, limit: float) -> Tensor:
        held.append(
            sum(local_shard(p).nbytes + local_shard(p.grad).nbytes for p in self.parameters() if p.grad is not None)
        )
        return clip(self, limit)

    Parallel.clip = counting  # type: ignore[method-assign]
    before = peak_resident() or 0
    running.run(job, Path(folder))
    rows = read_rows(Path(folder) / METRICS)
    return {"weights_and_gradients": held[-1], "before": before, "peak": rows[-1]["peak_memory"]}


def ideal(job: Job, name: str, whole: float) -> float:
    """Bytes that a process would keep if what the layout splits were halved; ``whole``: all of them."""
    facts = job.model_facts()
    assert facts is not None
    blocks = facts.blocks * facts.block_parameters
    split = {"fsdp": facts.parameters, "tp": facts.divided_parameters, "pp": blocks}
    part = split.get(name.split()[0], 0) / facts.parameters
    if name.startswith("zero1"):
        part = 0.5  # the optimizer's states are half of the bytes
    return whole * (1 - part / 2)


def main() -> None:
    found: dict[str, dict[str, Any]] = {}
    for name, (processes, words) in LAYOUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            ranks = spawn(measure, processes, words, f"{folder}/run", timeout=600)
        found[name] = {
            "peak": ranks[0]["peak"] - ranks[0]["before"],
            "held": max(rank["weights_and_gradients"] for rank in ranks),
            "ranks": ranks,
        }
    job = resolve(load(), "megatron_gpt:tiny", WORDS)
    facts = job.model_facts()
    assert facts is not None
    whole, alone = 16 * facts.parameters, found["single"]["peak"]
    print(f"{facts.parameters / 1e6:.1f} M parameters: {whole / 1e6:,.0f} MB of weights, gradients and states")
    print(f"{'':16}{'peak, MB':>10}{'ideal':>10}{'times':>8}{'held, MB':>10}")
    for name, row in found.items():
        row["ideal"] = round(alone - whole + ideal(job, name, whole))
        row["times"] = round(row["peak"] / row["ideal"], 3)
        peak, least, held = (row[key] / 1e6 for key in ("peak", "ideal", "held"))
        print(f"{name:16}{peak:10,.0f}{least:10,.0f}{row['times']:8.2f}{held:10,.0f}")
    result = {
        "what": "memory of a process under layouts, bytes",
        "parameters": facts.parameters,
        "layouts": found,
        "versions": common.versions("torch"),
        "processor": common.processor(),
    }
    common.write("layout_memory", result)


if __name__ == "__main__":
    main()
