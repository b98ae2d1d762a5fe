"""Rows of metrics in the format of Megatron-LM's training log, for tools that parse it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core import Job


def line(row: Mapping[str, Any], job: Job) -> str:
    """The console line of a row of metrics.jsonl."""
    parts = [f" iteration {row['step']:8d}/{job.train.steps:8d}", f"consumed samples: {row['consumed_samples']:12d}"]
    if "loss" in row:
        parts += [
            f"elapsed time per iteration (ms): {1000 * row['seconds']:.1f}",
            f"learning rate: {row['lr']:.6E}",
            f"global batch size: {job.train.global_batch:5d}",
            f"lm loss: {row['loss']:.6E}",
            f"grad norm: {row['grad_norm']:.3f}",
        ]
    if "flops_per_second" in row:
        parts.append(f"throughput per process (TFLOP/s): {row['flops_per_second'] / 1e12:.2f}")
    if "tokens_per_second" in row:
        parts.append(f"tokens/s: {row['tokens_per_second']:.0f}")
    if "val_loss" in row:
        parts.append(f"validation loss: {row['val_loss']:.6E}")
    return " | ".join(parts)
