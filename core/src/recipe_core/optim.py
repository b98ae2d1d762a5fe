"""The optimizer and its parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from recipe_core.settings import Train


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


@contextmanager
def keeping_settings(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Keep betas, decay and the like as they were asked for, though the block loads a state that brings its own."""
    asked = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    yield
    for group, settings in zip(optimizer.param_groups, asked, strict=True):
        group.update(settings)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use ``value`` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = value
