"""Widths of numbers: which weights a run keeps and in what its matrices are multiplied."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from recipe_core.settings import Precision


def cast(module: nn.Module, precision: Precision) -> nn.Module:
    """The module with weights as wide as ``precision`` keeps them."""
    return module.to(torch.bfloat16) if precision == "bf16" else module


def autocast(device: str, precision: Precision) -> AbstractContextManager[object]:
    """The context that a forward pass runs in on ``device`` (a device type)."""
    if precision == "bf16_mixed":
        return torch.autocast(device, torch.bfloat16)
    return nullcontext()
