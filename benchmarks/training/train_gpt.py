"""Training GPT-2 124M on a CPU: our model against transformers' GPT2LMHeadModel under its Trainer.

    PYTHONPATH=benchmarks python benchmarks/training/train_gpt.py [--rounds 3] [--steps 3]
        [--cases dropout plain pure fp32 fp32_plain]

Sequence 512, micro batch 2, AdamW (fused, as is the Trainer's default), clipping at 1. Cases: ``dropout`` (0.1
everywhere, GPT-2's) and ``plain`` (none), both with fp32 weights under bf16 autocast on both sides, which is what the
Trainer's bf16=True means (a processor without bf16 instructions emulates them; ours multiplies in fp32 there);
``pure``: weights, gradients and optimizer states in bf16 on both sides, with dropout; ``fp32`` and ``fp32_plain``: no
bf16 anywhere, with and without dropout. Every run has a process of its own, the contestants take turns, and the first
two steps of a run are not counted. The floor is the time of the model's matrix products at the speed of the best one
measured here. Needs recipe-megatron-gpt, transformers and accelerate in one environment. Writes results/train_gpt.json
beside this file; cases measured earlier on the same processor with the same versions stay.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import common
import torch

SEQUENCE, MICRO_BATCH, WORDS = 512, 2, 50257
TOKENS = SEQUENCE * MICRO_BATCH
UNCOUNTED = 2
CASES: dict[str, tuple[float, str]] = {
    "dropout": (0.1, "bf16_mixed"),
    "plain": (0.0, "bf16_mixed"),
    "pure": (0.1, "bf16"),
    "fp32": (0.1, "fp32"),
    "fp32_plain": (0.0, "fp32"),
}
"""Dropout and precision of each."""


class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens, the same for both."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(WORDS, (SEQUENCE,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def transformers(dropout: float, precision: str, steps: int) -> tuple[list[float], float]:
    """Seconds of each step of its Trainer, and the loss over them."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **settings: Any) -> None:
            ends.append(time.perf_counter())

    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=MICRO_BATCH,
            max_steps=steps + 1,
            bf16=precision == "bf16_mixed",
            max_grad_norm=1.0,
            use_cpu=True,
            dataloader_pin_memory=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        if precision == "bf16":
            model.to(torch.bfloat16)
        result = Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[Clock()]).train()
    return [end - start for start, end in pairwise(ends)], result.training_loss


def recipe(dropout: float, precision: str, steps: int) -> tuple[list[float], float]:
    """The same of our model, with the core's optimizer, clipping and precision."""
    from recipe_core.engine.precision import autocast, cast
    from recipe_core.hooks.train import Train
    from recipe_core.layouts.parallel import Parallel
    from recipe_core.train import optim
    from recipe_megatron_gpt.model.gpt import build

    module, loss = build(config(dropout))
    model = Parallel(cast(module, precision))  # type: ignore[arg-type]
    optimizer = optim.build(model.named_parameters(), Train(lr=5e-5, weight_decay=0.0))

    def micro(module: torch.nn.Module, batch: dict[str, torch.Tensor], number: int) -> Any:
        with autocast("cpu", precision):  # type: ignore[arg-type]
            return loss(module(batch), batch)

    words = iter(torch.utils.data.DataLoader(Words(), batch_size=MICRO_BATCH, shuffle=True))
    ends, losses = [], []
    for _ in range(steps + 1):
        ids = next(words)["input_ids"]
        batch = {"tokens": ids, "labels": ids.roll(-1, 1)}
        losses.append(model.backward([batch], micro)["loss"].item())
        model.clip(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ends.append(time.perf_counter())
    return [end - start for start, end in pairwise(ends)], sum(losses) / len(losses)


CONTESTANTS: dict[str, Callable[[float, str, int], tuple[list[float], float]]] = {
    "transformers": transformers,
    "recipe": recipe,
}


def config(dropout: float = 0.0) -> Any:
    """GPT-2 124M with its vocabulary padded to a multiple of 128."""
    from recipe_megatron_gpt.settings import Gpt

    return Gpt(
        layers=12,
        hidden=768,
        heads=12,
        positions=1024,
        vocabulary=50304,
        dropout=dropout,
        attention_dropout=dropout,
    )


def run(contestant: str, case: str, steps: int) -> dict[str, Any]:
    """Train in this process."""
    torch.manual_seed(1)
    seconds, loss = CONTESTANTS[contestant](*CASES[case], UNCOUNTED + steps)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds[UNCOUNTED:], "loss": loss, "peak": peak}


def summary(runs: list[dict[str, Any]], peers: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and the median of how much faster each run was than its peer's of the same round."""
    seconds = [median(r["seconds"]) for r in runs]
    pairs = [median(peer["seconds"]) / own for peer, own in zip(peers, seconds, strict=True)]
    return {
        "seconds_per_step": round(median(seconds), 4),
        "lowest": round(min(seconds), 4),
        "highest": round(max(seconds), 4),
        "tokens_per_second": round(TOKENS / median(seconds), 1),
        "times_faster": round(median(pairs), 2),
        "lowest_times_faster": round(min(pairs), 2),
        "peak_megabytes": round(median(r["peak"] for r in runs) / 1e6),
        "loss": round(median(r["loss"] for r in runs), 3),
    }


def floor(case: str) -> dict[str, Any]:
    """Seconds for the model's matrix products at this machine's best speed."""
    from recipe_megatron_gpt.model.facts import facts

    flops = facts(config(), SEQUENCE).flops_per_sample * MICRO_BATCH
    products = [(TOKENS, 768, 2304), (TOKENS, 768, 3072), (TOKENS, 3072, 768)]
    least = common.floor(flops, products, bf16=CASES[case][1] != "fp32")
    return {**least, "tokens_per_second": round(TOKENS / least["seconds_per_step"], 1)}


def report(written: dict[str, Any]) -> None:
    """Print a table."""
    print(f"{'':24}{'s/step':>10}{'tokens/s':>10}{'of floor':>10}{'times faster':>14}{'lowest':>8}{'peak MB':>9}")
    for case, results in written["results"].items():
        least = results["floor"]
        print(
            f"{case}: at least {least['gflop_per_step']} GFLOP a step; at {least['matmul_peak_gflops']} GFLOP/s "
            f"{least['seconds_per_step']:.2f} s, {least['tokens_per_second']:.0f} tokens/s"
        )
        for name in CONTESTANTS:
            result = results[name]
            share = result["tokens_per_second"] / least["tokens_per_second"]
            print(
                f"{case + ', ' + name:24}{result['seconds_per_step']:10.2f}{result['tokens_per_second']:10.0f}"
                f"{share:10.0%}{result['times_faster']:14.2f}{result['lowest_times_faster']:8.2f}"
                f"{result['peak_megabytes']:9}"
            )


def compare(options: argparse.Namespace) -> None:
    """Both in turn, as many rounds as asked for, in each case."""
    load = os.getloadavg()[0]
    results: dict[str, dict[str, Any]] = {}
    for case in options.cases:
        least = floor(case)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
        for number in range(options.rounds):
            for name, done in runs.items():
                done.append(common.in_new_process(__file__, "--run", name, case, str(options.steps)))
                note = (
                    f"{case}, round {number + 1} of {options.rounds}, {name}: {median(done[-1]['seconds']):.2f} s/step"
                )
                print(note, file=sys.stderr, flush=True)
        results[case] = {
            **{name: summary(done, runs["transformers"]) for name, done in runs.items()},
            "floor": least,
            "rounds": options.rounds,
            "steps": options.steps,
        }
    written = {
        "what": "GPT-2 124M, sequence 512, micro batch 2; medians over processes of their own, in turn",
        "cases": {name: {"dropout": CASES[name][0], "precision": CASES[name][1]} for name in options.cases},
        "results": results,
        "load_before": round(load, 1),
        "threads": torch.get_num_threads(),
        "processor": common.processor(),
        "versions": common.versions("torch", "transformers", "accelerate"),
    }
    report(written)
    common.write("train_gpt", common.with_earlier("train_gpt", written, ("cases", "results")))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, help="default: those that are not emulated")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        contestant, case, steps = options.run
        print(json.dumps(run(contestant, case, int(steps))))
    else:
        options.cases = options.cases or common.multiplied({name: precision for name, (_, precision) in CASES.items()})
        compare(options)


if __name__ == "__main__":
    main()
