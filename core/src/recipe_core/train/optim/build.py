"""The optimizer that the settings ask for, and its two groups of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from recipe_core.hooks.train import Train
from recipe_core.train.optim.adamw import AdamW
from recipe_core.train.optim.lamb import Lamb
from recipe_core.train.optim.shards import Groups

_CLASSES: dict[str, type[AdamW]] = {"adamw": AdamW, "lamb": Lamb}


def build(
    parameters: Iterable[tuple[str, nn.Parameter]],
    train: Train,
    shard_groups: Mapping[str, Groups] | None = None,
    *,
    traced: bool = False,
) -> torch.optim.Optimizer:
    """The optimizer that ``train`` asks for.

    Args:
        parameters: names in the model and trainable parameters, tied ones once. DTensors and others may be mixed.
        train: the settings.
        shard_groups: see :attr:`recipe_core.layouts.parallel.Parallel.shard_groups`.
        traced: see :attr:`recipe_core.engine.protocol.Engine.traced`.

    Returns:
        An optimizer of two parameter groups: with weight decay (and, under LAMB, a trust ratio), then biases and norms.
    """
    named, sharded = list(parameters), shard_groups or {}
    groups = [
        {"params": [p for name, p in named if decays(name, p)], "weight_decay": train.weight_decay},
        {"params": [p for name, p in named if not decays(name, p)], "weight_decay": 0.0, "adapts": False},
    ]
    return _CLASSES[train.optimizer](
        groups, train, {p: name for name, p in named}, {p: sharded[name] for name, p in named if name in sharded},
        traced=traced,
    )  # fmt: skip


def decays(name: str, parameter: nn.Parameter) -> bool:
    """True where weight decay applies: to matrices and embeddings, not to biases and norms, which are vectors.

    A DTensor counts as the whole tensor that it is a shard of.
    """
    return parameter.ndim > 1 and not name.endswith("bias")


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use ``value`` from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = value
