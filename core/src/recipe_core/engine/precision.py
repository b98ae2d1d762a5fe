"""Precision: the dtype of weights, the autocast context of a forward pass, and the threads that compute it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import nn

from recipe_core.hooks.train import Precision
from recipe_core.launch.cores import cpu_quota


def cast(module: nn.Module, precision: Precision) -> nn.Module:
    """``module`` with weights in the dtype of ``precision``."""
    return module.to(torch.bfloat16) if precision == "bf16" else module


def autocast(device: str, precision: Precision) -> AbstractContextManager[object]:
    """The autocast context of a forward pass on ``device`` (a device type).

    On a processor without bf16 instructions, a bf16 product takes up to a hundred times as long as one in fp32: there,
    ``bf16_mixed`` multiplies in fp32, which is no less exact. So does ``fp8`` outside of its 8-bit products.
    """
    if precision in ("bf16_mixed", "fp8") and multiplies_bf16(device):
        return torch.autocast(device, torch.bfloat16)
    return nullcontext()


@cache
def multiplies_bf16(device: str) -> bool:
    """True if ``device`` (a device type) has bf16 instructions; assumed for all but CPUs."""
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def described(device: str, precision: Precision) -> str:
    """``precision`` as the first lines of a run print it, with a note about ``device`` where one is needed."""
    if precision == "fp8" and device == "cpu":
        return "fp8 (emulated, and slow: no CPU multiplies in 8 bits)"
    if precision == "fp32" or multiplies_bf16(device):
        return precision
    if precision == "bf16_mixed":
        return "bf16_mixed (in fp32: no bf16 instructions here)"
    return f"{precision} (slow: this processor has no bf16 instructions; fp32 is many times faster)"


def mixes_widths(device: str) -> bool:
    """True if norms on ``device`` (a device type) accept bf16 weights for fp32 values; those on CPUs do not."""
    return device != "cpu"


def threads(device: str) -> str:
    """Describe how many threads compute in a process on a CPU, and the quota that limits them; empty elsewhere."""
    if device != "cpu":
        return ""
    count, quota = torch.get_num_threads(), cpu_quota()
    limited = "" if quota is None else f" (the container's quota of cores: {quota:g})"
    return f", {count} thread{'s' * (count > 1)}{limited}"
