"""One step of the optimizer on the parameters of BERT-base (110 million): ours against torch.optim.AdamW.

Contestants: torch.optim.AdamW unfused (``foreach=False``: its default on a CPU, as published scripts call it) and
fused, each on fp32 and on bf16 weights; ours with every width of weights and states, with stochastic rounding, and as
LAMB. Each steps on tensors of its own, of the same values; they take turns.

The floor is the memory: a step must read the weights, the gradients and the states once, and write all but the
gradients once. The time of these bytes is taken from torch's fused AdamW on fp32, which touches each once and is the
fastest of all per byte. What lies between is arithmetic: widening and rounding of bf16 (stochastic rounding draws bits,
and where the moments are bf16 too it rounds three tensors), and for LAMB a second pass over weights and updates, since
a norm must be there before it is used.

    PYTHONPATH=benchmarks python benchmarks/training/optimizer.py
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import torch
from torch import nn

from recipe_core.hooks.train import Train
from recipe_core.train.optim import build

HIDDEN, LAYERS, VOCABULARY = 768, 12, 30_522
BF16: dict[str, Any] = {"precision": "bf16"}
OURS: dict[str, dict[str, Any]] = {
    "adamw fp32": {},
    "adamw bf16": BF16,
    "adamw bf16, rounded": {**BF16, "stochastic_rounding": True},
    "adamw bf16, fp32 states": {**BF16, "optimizer_states": "fp32"},
    "adamw bf16, fp32 states, rounded": {**BF16, "optimizer_states": "fp32", "stochastic_rounding": True},
    "adamw bf16, master": {**BF16, "optimizer_states": "master"},
    "lamb fp32": {"optimizer": "lamb"},
    "lamb bf16, master": {**BF16, "optimizer": "lamb", "optimizer_states": "master"},
}
BYTES = {  # per value, read and written: weights (or their master copy) and moments twice, gradients once, weights once
    "adamw fp32": 28, "adamw bf16": 14, "adamw bf16, rounded": 14, "adamw bf16, fp32 states": 22,
    "adamw bf16, fp32 states, rounded": 22, "adamw bf16, master": 28, "lamb fp32": 28, "lamb bf16, master": 28,
}  # fmt: skip


def parameters(dtype: torch.dtype) -> list[tuple[str, nn.Parameter]]:
    """BERT-base's, with gradients."""
    shapes = [(VOCABULARY, HIDDEN), (512, HIDDEN), (2, HIDDEN), (HIDDEN,), (HIDDEN,)]
    square, wide = (HIDDEN, HIDDEN), 4 * HIDDEN
    vectors = [(HIDDEN,)] * 9 + [(wide,)]
    shapes += LAYERS * [*[square] * 4, (wide, HIDDEN), (HIDDEN, wide), *vectors]
    random = torch.Generator().manual_seed(0)
    found = []
    for number, shape in enumerate(shapes):
        parameter = nn.Parameter(torch.empty(shape).uniform_(-0.04, 0.04, generator=random).to(dtype))
        parameter.grad = torch.empty(shape).uniform_(-1e-3, 1e-3, generator=random).to(dtype)
        found.append((str(number), parameter))
    return found


def theirs(dtype: torch.dtype, fused: bool) -> torch.optim.Optimizer:
    named = parameters(dtype)
    groups = [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-4, fused=fused, foreach=False)


def ours(settings: dict[str, Any]) -> torch.optim.Optimizer:
    dtype = torch.bfloat16 if settings.get("precision") == "bf16" else torch.float32
    return build(parameters(dtype), Train(lr=1e-4, **settings))


def contestants() -> dict[str, Callable[[], torch.optim.Optimizer]]:
    found: dict[str, Callable[[], torch.optim.Optimizer]] = {}
    for width, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for kind, fused in (("unfused", False), ("fused", True)):
            found[f"torch adamw {kind}, {width}"] = partial(theirs, dtype, fused)
    return found | {f"recipe {name}": partial(ours, settings) for name, settings in OURS.items()}


def measure(rounds: int, repeat: int) -> dict[str, list[float]]:
    """Seconds of a step, by turns; each contestant is built anew for its turn, since all together would not fit."""
    found: dict[str, list[float]] = {name: [] for name in contestants()}
    for _ in range(rounds):
        for name, make in contestants().items():
            optimizer = make()
            optimizer.step()
            for _ in range(repeat):
                begin = time.perf_counter()
                optimizer.step()
                found[name].append(time.perf_counter() - begin)
            del optimizer
            gc.collect()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="steps of each contestant in a round")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    count = sum(p.numel() for _, p in parameters(torch.bfloat16))
    figures = summary(measure(options.rounds, options.repeat), count) | {"threads": options.threads}
    for name, seconds in figures["seconds"].items():
        floor = figures["floor_seconds"].get(name)
        print(f"{name:42}{seconds * 1e3:8.0f} ms" + (f"{seconds / floor:8.2f} times the floor" if floor else ""))
    common.write("optimizer", figures)


def summary(found: dict[str, list[float]], count: int) -> dict[str, Any]:
    """Medians, floors and the ratios that count."""
    medians = {name: statistics.median(values) for name, values in found.items()}
    byte = medians["torch adamw fused, fp32"] / (count * BYTES["adamw fp32"])
    unfused, fused = (medians[f"torch adamw {kind}, fp32"] for kind in ("unfused", "fused"))
    return {
        "parameters": count, "seconds": medians, "measurements": found,
        "floor_seconds": {f"recipe {name}": count * each * byte for name, each in BYTES.items()},
        "adamw_fp32_against_unfused": unfused / medians["recipe adamw fp32"],
        "adamw_fp32_against_fused": fused / medians["recipe adamw fp32"],
        "adamw_bf16_fp32_states_against_unfused_bf16": medians["torch adamw unfused, bf16"]
        / medians["recipe adamw bf16, fp32 states"],
        "adamw_bf16_master_against_unfused_fp32": unfused / medians["recipe adamw bf16, master"],
        "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
