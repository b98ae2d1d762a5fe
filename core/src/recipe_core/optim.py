"""The optimizer and its parameter groups."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import nn

from recipe_core.specs import Train


def adamw(parameters: Iterable[nn.Parameter], train: Train) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019), fused where the device has it; biases and norms do not decay."""
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for p in parameters:
        (decayed if p.ndim > 1 else plain).append(p)
    groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    make = partial(torch.optim.AdamW, groups, lr=train.lr, betas=train.betas, eps=train.eps)
    try:
        return make(fused=True)
    except RuntimeError:  # no fused kernel for this device or dtype
        return make()


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use ``value`` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = value
