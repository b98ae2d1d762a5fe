"""Widths of numbers: which weights a run keeps and in what its matrices are multiplied."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import nn

from recipe_core.hooks.train import Precision


def cast(module: nn.Module, precision: Precision) -> nn.Module:
    """The module with weights as wide as ``precision`` keeps them."""
    return module.to(torch.bfloat16) if precision == "bf16" else module


def autocast(device: str, precision: Precision) -> AbstractContextManager[object]:
    """The context that a forward pass runs in on ``device`` (a device type).

    A processor without bf16 instructions takes up to a hundred times as long for a product in bf16 as in fp32: there,
    ``bf16_mixed`` multiplies in fp32, which is no less exact. So does all of ``fp8`` but the products in 8 bits.
    """
    if precision in ("bf16_mixed", "fp8") and multiplies_bf16(device):
        return torch.autocast(device, torch.bfloat16)
    return nullcontext()


@cache
def multiplies_bf16(device: str) -> bool:
    """True if ``device`` (a device type) has instructions for products in bf16; assumed of all but CPUs."""
    return device != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def described(device: str, precision: Precision) -> str:
    """``precision`` for the opening words of a run, with what the user of this ``device`` should know about it."""
    if precision == "fp8" and device == "cpu":
        return "fp8 (emulated, and slow: no CPU multiplies in 8 bits)"
    if precision == "fp32" or multiplies_bf16(device):
        return precision
    if precision == "bf16_mixed":
        return "bf16_mixed (in fp32: this processor has no bf16 instructions)"
    return f"{precision} (slow: this processor has no bf16 instructions; fp32 is many times faster)"


def mixes_widths(device: str) -> bool:
    """True if a norm on ``device`` (a device type) takes bf16 weights for fp32 values; PyTorch's on CPUs does not."""
    return device != "cpu"
