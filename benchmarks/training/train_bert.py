"""Training BERT-base on a CPU: a step of ours against a step as the published scripts take it.

    PYTHONPATH=benchmarks python benchmarks/training/train_bert.py [--rounds 3] [--steps 3] [--micro-batch 16]
        [--layers 12] [--cases mixed pure fp32]

Sequence 128, 20 predictions, one micro batch per step, dropout 0.1, gradients clipped at 1. The script's way, as in
Neuron's and NVIDIA's pre-training scripts: transformers' BertForPreTraining in eager mode, logits of all tokens, padded
labels, torch.optim.AdamW without foreach and fused. Ours: the model, optimizer and precision of `recipe run bert_dp`.
Cases: ``mixed``, fp32 weights under bf16 autocast (a processor without bf16 instructions emulates them; ours multiplies
in fp32 there); ``pure``, weights, gradients and optimizer states in bf16; ``fp32``, no bf16 anywhere. Every row is full
of tokens. Every run has a process of its own, the contestants take turns, and the first step of a run is not counted.
The floor is the time of the model's matrix products, with masked places alone meeting the vocabulary, at the speed of
the best one measured here. After the runs, one more step of each is profiled for its largest costs. Needs
recipe-bert-dp alone. Writes results/train_bert.json beside this file; cases measured earlier on the same machine stay.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import common
import torch

SEQUENCE, PREDICTIONS, WORDS = 128, 20, 30522
UNCOUNTED = 1
CASES = {"mixed": "bf16_mixed", "pure": "bf16", "fp32": "fp32"}
"""Precision of each."""
LARGEST = 12
"""Costs that are listed."""
Step = Callable[[], float]


def batch_of(micro_batch: int) -> dict[str, torch.Tensor]:
    """Random rows without padding, the same for both."""
    make = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, WORDS, (micro_batch, SEQUENCE), generator=make)
    places = torch.stack([torch.randperm(SEQUENCE - 1, generator=make)[:PREDICTIONS] + 1 for _ in range(micro_batch)])
    segments = (torch.arange(SEQUENCE) >= SEQUENCE // 2).long().expand(micro_batch, -1)
    return {
        "input_ids": ids,
        "input_mask": torch.ones_like(ids),
        "segment_ids": segments.contiguous(),
        "masked_lm_positions": places,
        "masked_lm_ids": torch.randint(1000, WORDS, places.shape, generator=make),
        "next_sentence_labels": torch.randint(2, (micro_batch,), generator=make),
    }


def script(precision: str, layers: int, batch: dict[str, torch.Tensor]) -> Step:
    """A step as the published scripts take it; gives the loss."""
    from transformers import BertConfig, BertForPreTraining

    model = BertForPreTraining(BertConfig(num_hidden_layers=layers)).train()
    model = model.to(torch.bfloat16) if precision == "bf16" else model
    plain = {name for name, _ in model.named_parameters() if "bias" in name or "LayerNorm" in name}
    groups = [
        {"params": [p for name, p in model.named_parameters() if name not in plain], "weight_decay": 0.01},
        {"params": [p for name, p in model.named_parameters() if name in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=4e-4, foreach=False, fused=False)

    def step() -> float:
        labels = torch.full_like(batch["input_ids"], -100)
        labels.scatter_(1, batch["masked_lm_positions"], batch["masked_lm_ids"])
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16_mixed"):
            loss = model(
                input_ids=batch["input_ids"],
                attention_mask=batch["input_mask"],
                token_type_ids=batch["segment_ids"],
                labels=labels,
                next_sentence_label=batch["next_sentence_labels"],
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def recipe(precision: str, layers: int, batch: dict[str, torch.Tensor]) -> Step:
    """A step of `recipe run bert_dp`."""
    from recipe_bert_dp.model.bert import build
    from recipe_bert_dp.settings import BertPretraining
    from recipe_core.engine.memory import keep_freed_memory
    from recipe_core.engine.precision import autocast, cast
    from recipe_core.hooks.train import Train
    from recipe_core.layouts.parallel import Parallel
    from recipe_core.train.optim import build as optimizer_of

    keep_freed_memory()
    module, loss_of = build(BertPretraining(layers=layers))
    model = Parallel(cast(module, precision))  # type: ignore[arg-type]
    optimizer = optimizer_of(model.module.named_parameters(), Train(lr=4e-4))

    def micro(module: torch.nn.Module, batch: dict[str, torch.Tensor], number: int) -> Any:
        with autocast("cpu", precision):  # type: ignore[arg-type]
            return loss_of(module(batch), batch)

    def step() -> float:
        loss = model.backward([batch], micro)["loss"]
        model.clip(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss)

    return step


CONTESTANTS: dict[str, Callable[[str, int, dict[str, torch.Tensor]], Step]] = {"script": script, "recipe": recipe}


def run(contestant: str, case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Take steps in this process; with ``--profile``, one of them under the profiler."""
    torch.manual_seed(1)
    step = CONTESTANTS[contestant](CASES[case], options.layers, batch_of(options.micro_batch))
    seconds, loss = [], 0.0
    for _ in range(UNCOUNTED + options.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    costs = largest_costs(step) if options.profile else None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds[UNCOUNTED:], "loss": loss, "peak": peak, "costs": costs}


def largest_costs(step: Step) -> dict[str, float]:
    """Shares of a step's time in the operations that take most of it, in percent."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    found = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    whole = sum(found.values())
    largest = sorted(found.items(), key=lambda item: -item[1])[:LARGEST]
    return {name: round(100 * value / whole, 1) for name, value in largest}


def in_new_process(contestant: str, case: str, options: argparse.Namespace, profile: bool = False) -> dict[str, Any]:
    """``run`` in a process of its own."""
    words = ["--run", contestant, case, "--steps", "0" if profile else str(options.steps)]
    words += ["--micro-batch", str(options.micro_batch), "--layers", str(options.layers)] + ["--profile"] * profile
    return common.in_new_process(__file__, *words)


def floor(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Matrix products of a step at the best speed of one, as no implementation could be faster."""
    from recipe_bert_dp.model.facts import facts
    from recipe_bert_dp.settings import BertPretraining

    flops = facts(BertPretraining(layers=options.layers), SEQUENCE).flops_per_sample * options.micro_batch
    tokens = options.micro_batch * SEQUENCE
    products = [(tokens, 768, 768), (tokens, 768, 3072), (tokens, 3072, 768)]
    least = common.floor(flops, products, bf16=case != "fp32")
    return {**least, "sequences_per_second": round(options.micro_batch / least["seconds_per_step"], 2)}


def summary(runs: list[dict[str, Any]], against: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians over all steps of all rounds; the ratio is the median of the rounds' ratios."""
    seconds = [one for done in runs for one in done["seconds"]]
    ratios = [median(b["seconds"]) / median(a["seconds"]) for a, b in zip(runs, against, strict=True)]
    return {
        "seconds_per_step": round(median(seconds), 4),
        "sequences_per_second": round(options.micro_batch / median(seconds), 3),
        "times_faster": round(median(ratios), 2),
        "lowest_times_faster": round(min(ratios), 2),
        "peak_megabytes": round(max(done["peak"] for done in runs) / 1e6),
        "seconds": [[round(one, 4) for one in done["seconds"]] for done in runs],
    }


def measure(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both in turn, as many rounds as asked for, then the profiles."""
    least = floor(case, options)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CONTESTANTS}
    for number in range(options.rounds):
        for name, done in runs.items():
            done.append(in_new_process(name, case, options))
            note = f"{case}, round {number + 1} of {options.rounds}, {name}: {median(done[-1]['seconds']):.2f} s/step"
            print(note, file=sys.stderr, flush=True)
    found: dict[str, Any] = {name: summary(done, runs["script"], options) for name, done in runs.items()}
    for name in CONTESTANTS:
        found[name]["largest_costs_percent"] = in_new_process(name, case, options, profile=True)["costs"]
    sizes = {name: getattr(options, name) for name in ("layers", "micro_batch", "rounds", "steps")}
    return {**sizes, "threads": torch.get_num_threads(), "floor": least, **found}


def report(results: dict[str, Any]) -> None:
    """Print a table, and the largest costs."""
    for case, found in results.items():
        least = found["floor"]
        print(
            f"{case}, {found['layers']} layers, micro batch {found['micro_batch']}; floor: {least['gflop_per_step']} "
            f"GFLOP a step at {least['matmul_peak_gflops']} GFLOP/s are {least['seconds_per_step']:.2f} s"
        )
        print(f"{'':10}{'s/step':>10}{'seq/s':>10}{'of floor':>10}{'times faster':>14}{'lowest':>8}{'peak MB':>9}")
        for name in CONTESTANTS:
            result = found[name]
            share = least["seconds_per_step"] / result["seconds_per_step"]
            print(
                f"{name:10}{result['seconds_per_step']:10.2f}{result['sequences_per_second']:10.3f}"
                f"{share:10.0%}{result['times_faster']:14.2f}{result['lowest_times_faster']:8.2f}"
                f"{result['peak_megabytes']:9}"
            )
            costs = ", ".join(f"{op} {percent}" for op, percent in result["largest_costs_percent"].items())
            print(f"    percent of a step: {costs}")


def compare(options: argparse.Namespace) -> None:
    """Measure the cases, and write what was found beside what earlier runs on the same machine found."""
    load = os.getloadavg()[0]
    written = {
        "what": f"BERT-base width, sequence {SEQUENCE}, {PREDICTIONS} predictions, one micro batch per step; medians "
        "over processes of their own, in turn",
        "processor": common.processor(),
        "versions": common.versions("torch", "transformers"),
        "load_before": round(load, 1),
        "results": {case: measure(case, options) for case in options.cases},
    }
    report(written["results"])
    common.write("train_bert", common.with_earlier("train_bert", written, ("results",)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, help="default: those that are not emulated")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(*options.run, options)))
    else:
        options.cases = options.cases or common.multiplied(CASES)
        compare(options)


if __name__ == "__main__":
    main()
