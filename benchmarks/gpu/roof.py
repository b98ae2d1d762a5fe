"""Bounds of a step: the time of its matrix products and of the optimizer's memory traffic, as measured here; and MFU.

MFU = model FLOPs of a step / (seconds of a step x the device's dense peak in bf16), after Chowdhery and others, "PaLM"
(2022), appendix B. The FLOPs are those of forward and backward without recomputation, as the model's facts count them:
for GPT after Narayanan and others, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
(2021), with causal attention counted as whole; for BERT, masked places alone meet the vocabulary. The peak is the data
sheet's (recipe_core/engine/machine/peaks.py). The same FLOPs count for all contestants. Rows are counted with their
padding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from cases import Case

Shape = tuple[int, int, int]
"""Rows, inner dimension and columns of a product."""
OPTIMIZER_BYTES = 28
"""Of AdamW in fp32 for each parameter: weight, gradient and two moments are read, all but the gradient written."""


def products(case: Case) -> dict[Shape, int]:
    """How often each product of a forward pass occurs in a micro batch."""
    tokens, h = case.micro_batch * case.sequence, case.hidden
    block = {(tokens, h, 3 * h): 1, (tokens, h, h): 1, (tokens, h, 4 * h): 1, (tokens, 4 * h, h): 1}
    found = {shape: count * case.layers for shape, count in block.items()}
    if case.family == "gpt":
        found[tokens, h, case.vocabulary] = 1
    if case.family == "bert":
        found[case.micro_batch * case.predictions, h, case.vocabulary] = 1
    return found


def attention_flops(case: Case) -> float:
    """Of scores and values of a step, forward and backward; of causal attention, the half that is needed."""
    whole = 3 * 4 * case.sequence**2 * case.hidden * case.layers * case.global_batch
    return whole / 2 if case.family == "gpt" else whole


def measure(case: Case, parameters: int) -> dict[str, Any]:
    """Seconds below which no step of this precision gets on this machine, and what they are made of."""
    dtype = torch.float32 if case.dry else torch.bfloat16
    rates, seconds = {}, 0.0
    for shape, count in products(case).items():
        each, flops = sum(_seconds_of(shape, dtype, case.device)), 6 * math.prod(shape)
        rates["x".join(map(str, shape))] = round(flops / each / 1e12, 3)
        seconds += count * each * case.micro_batches
    peak = max(rates.values())
    bandwidth = _bandwidth(case)
    attention, optimizer = attention_flops(case) / (peak * 1e12), OPTIMIZER_BYTES * parameters / bandwidth
    return {
        "matmul_tflops": rates, "matmul_peak_tflops": peak, "bandwidth_gb_per_second": round(bandwidth / 1e9, 1),
        "seconds_of_products": seconds, "seconds_of_attention": attention, "seconds_of_optimizer": optimizer,
        "seconds_per_step": seconds + attention + optimizer,
    }  # fmt: skip


def _seconds_of(shape: Shape, dtype: torch.dtype, device: str) -> list[float]:
    """Of the product in forward, and of both in backward."""
    rows, inner, columns = shape
    x, w, g = (
        torch.randn(a, b, dtype=dtype, device=device) for a, b in ((rows, inner), (columns, inner), (rows, columns))
    )
    return [_best(call, device) for call in (lambda: x @ w.T, lambda: g @ w, lambda: g.T @ x)]


def _best(call: Callable[[], object], device: str) -> float:
    """The shortest of some timed calls."""
    found = []
    for number in range(12):
        begin = _now(device)
        call()
        if number >= 2:
            found.append(_now(device) - begin)
    return min(found)


def _bandwidth(case: Case) -> float:
    """Bytes per second that a large copy reads and writes."""
    source = torch.ones((1 << 22) if case.dry else (1 << 30), device=case.device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.itemsize / _best(lambda: target.copy_(source), case.device)


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def judged(result: dict[str, Any], flops: float, samples: float, device: str) -> dict[str, Any]:
    """``result`` with speed and MFU; ``flops`` and ``samples`` are those of a step."""
    from recipe_core.engine.machine.peaks import known_peak

    seconds = result["seconds_per_step"]
    peak = known_peak(torch.cuda.get_device_name()) if device == "cuda" else None
    per_second = flops / seconds
    return {
        **result,
        "per_second": samples / seconds,
        "tflops_per_second": per_second / 1e12,
        "mfu": per_second / (peak.bf16 * 1e12) if peak and peak.bf16 else None,
    }
