"""Log lines in the format of the published BERT scripts, for tools that parse their logs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from recipe_core import Job


def line(row: Mapping[str, Any], job: Job) -> str:
    """Format a row of metrics.jsonl for the console.

    It begins as in the logs of AWS's scripts: time, (epoch, step), loss, learning rate, sequences/s. Further values
    follow, separated by bars: loss and accuracy of each task, tokens/s without padding, and MFU if the device's peak is
    known.
    """
    head = f"LOG {time.asctime()} - ({_epoch(row, job)}, {row['step']})"
    if "loss" in row:
        head += (
            f" step_loss : {row['loss']:.4f} learning_rate : {row['lr']:.2e} "
            f"throughput : {row['sequences_per_second']:.2f} grad-norm : {row['grad_norm']:.3f}"
        )
    parts = [head, *_tasks(row)]
    if "real_tokens_per_second" in row:
        parts.append(f"real tokens/s {row['real_tokens_per_second']:,.0f}")
    if "mfu" in row:
        parts.append(f"MFU {row['mfu']:.1%}")
    if "val_loss" in row:
        parts += [f"validation loss {row['val_loss']:.4f}", *(f"validation {text}" for text in _tasks(row, "val_"))]
    return " | ".join(parts)


def _epoch(row: Mapping[str, Any], job: Job) -> int:
    samples = job.facts.data.train_samples if job.facts.data else None
    return int(row["consumed_samples"]) // samples if samples else 0


def _tasks(row: Mapping[str, Any], prefix: str = "") -> list[str]:
    fields = []
    for task in ("mlm", "nsp"):
        loss, accuracy = row.get(f"{prefix}{task}_loss"), row.get(f"{prefix}{task}_accuracy")
        if loss is not None:
            fields.append(f"{task} loss {loss:.4f}" + (f", accuracy {accuracy:.4f}" if accuracy is not None else ""))
    return fields
