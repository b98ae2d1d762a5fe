"""What to tell a user whose checkpoint does not fit the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

Saved = Mapping[str, "TensorStorageMetadata | BytesStorageMetadata"]
SHOWN = 10
"""So many differences are listed; the others are counted."""


def mismatch(saved: Saved, wanted: Mapping[str, Any]) -> str:
    """All differences between what a checkpoint holds and what the run expects, as one message; empty when it fits.

    Args:
        saved: DCP's metadata by flat name (``"model.blocks.0.bias"``).
        wanted: tensors and plain values of the run by flat name.
    """
    count = sum(1 for _ in _differences(saved, wanted, near=False))
    if not count:
        return ""
    shown = list(islice(_differences(saved, wanted, near=True), SHOWN))
    more = [f"and {count - SHOWN:,} more"] if count > SHOWN else []
    return "\n".join(
        [
            f"does not fit this run, {count:,} of {len({*saved, *wanted}):,} entries differ:",
            *(f"  - {line}" for line in [*shown, *more]),
            "Continue with the settings that it was written with, or give another --out",
        ]
    )


def _differences(saved: Saved, wanted: Mapping[str, Any], *, near: bool) -> Iterator[str]:
    """Missing names first, then names too many, then entries that differ; ``near`` adds the nearest name."""
    missing, extra = [n for n in wanted if n not in saved], [n for n in saved if n not in wanted]
    for name in missing:
        yield f"{name}: not in the checkpoint{_nearest(name, extra) if near else ''}"
    for name in extra:
        yield f"{name}: in the checkpoint, and not in this run{_nearest(name, missing) if near else ''}"
    for name, value in wanted.items():
        if name in saved and (found := _found(saved[name])) != (expected := _expected(value)):
            yield f"{name}: found {found}, expected {expected}"


def _nearest(name: str, others: list[str]) -> str:
    found = get_close_matches(name, others, n=1)
    return f"; nearest there: {found[0]}" if found else ""


def _found(entry: TensorStorageMetadata | BytesStorageMetadata) -> str:
    if isinstance(entry, BytesStorageMetadata):
        return "a plain value"
    return _tensor(list(entry.size), entry.properties.dtype)


def _expected(value: object) -> str:
    return _tensor(list(value.shape), value.dtype) if isinstance(value, Tensor) else "a plain value"


def _tensor(shape: list[int], dtype: object) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
