"""Message for a checkpoint that does not match the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.lazy import Lazy

SHOWN = 10
"""Number of differences that are listed; the others are counted."""
CONTINUE = "Continue with the settings that it was written with, or give another --out"


def mismatch(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], advice: str = CONTINUE, *, dtypes: bool = True
) -> str:
    """Return all differences between a checkpoint and the run's state as one message; empty if they match.

    Args:
        saved: tensors and plain values by flat name (``"model.blocks.0.bias"``).
        wanted: the same of the run.
        advice: the last line: what to do.
        dtypes: require equal dtypes; else dtypes of the same kind are converted to the run's.
    """
    count = sum(1 for _ in _differences(saved, wanted, dtypes, near=False))
    if not count:
        return ""
    shown = list(islice(_differences(saved, wanted, dtypes, near=True), SHOWN))
    more = [f"and {count - SHOWN:,} more"] if count > SHOWN else []
    return "\n".join(
        [
            f"does not fit this run, {count:,} of {len({*saved, *wanted}):,} entries differ:",
            *(f"  - {line}" for line in [*shown, *more]),
            advice,
        ]
    )


def _differences(saved: Mapping[str, Any], wanted: Mapping[str, Any], dtypes: bool, *, near: bool) -> Iterator[str]:
    """Yield missing names, then unexpected names, then entries that differ; ``near`` adds the nearest name."""
    missing, extra = [n for n in wanted if n not in saved], [n for n in saved if n not in wanted]
    for name in missing:
        yield f"{name}: not in the checkpoint{_nearest(name, extra) if near else ''}"
    for name in extra:
        yield f"{name}: in the checkpoint, and not in this run{_nearest(name, missing) if near else ''}"
    for name, value in wanted.items():
        if name not in saved:
            continue
        exactly = dtypes or _kind(saved[name]) != _kind(value)
        if (saved_as := described(saved[name], exactly)) != (expected := described(value, exactly)):
            yield f"{name}: found {saved_as}, expected {expected}"


def _kind(value: object) -> str:
    # Dtypes of one kind are converted to each other; integers instead of weights are damage.
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        return "plain"
    return "float" if dtype.is_floating_point else "complex" if dtype.is_complex else "integer"


def _nearest(name: str, candidates: list[str]) -> str:
    nearest = get_close_matches(name, candidates, n=1)
    return f"; nearest there: {nearest[0]}" if nearest else ""


def described(value: object, dtypes: bool = True) -> str:
    """Describe a tensor by dtype and shape (``float32 [8, 6]``), anything else as a plain value."""
    if not isinstance(value, Tensor | Lazy):
        return "a plain value"
    shape = str(list(value.shape))
    return f"{str(value.dtype).removeprefix('torch.')} {shape}" if dtypes else shape
