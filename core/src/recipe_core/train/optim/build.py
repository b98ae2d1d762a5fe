"""The core's optimizers, built over two parameter groups of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from recipe_core.hooks.specs import Structure
from recipe_core.hooks.train import Train
from recipe_core.train.optim.adamw import AdamW
from recipe_core.train.optim.lamb import Lamb
from recipe_core.train.optim.shards import ShardGroups


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """The parameters that an optimizer updates, as this process holds them."""

    named: Sequence[tuple[str, nn.Parameter]]
    """Trainable parameters and their names in the model, tied ones once. DTensors and plain tensors may be mixed."""
    train: Train
    structure: Structure = field(default_factory=Structure)
    """Names of the model's blocks, and the roles of its matrices."""
    shard_groups: Mapping[str, ShardGroups] = field(default_factory=dict)
    """See :attr:`recipe_core.layouts.parallel.Parallel.shard_groups`."""
    traced: bool = False
    """See :attr:`recipe_core.engine.protocol.Engine.traced`."""

    @property
    def names(self) -> dict[nn.Parameter, str]:
        """The name of each parameter."""
        return {parameter: name for name, parameter in self.named}

    @property
    def sharded(self) -> dict[nn.Parameter, ShardGroups]:
        """For parameters that are plain tensors but shards, the process groups with the other shards."""
        return {p: self.shard_groups[name] for name, p in self.named if name in self.shard_groups}

    def groups(self, parameters: Iterable[tuple[str, nn.Parameter]] | None = None) -> list[dict[str, Any]]:
        """Two parameter groups of ``parameters`` (None: all): with weight decay, and biases and norms without."""
        named = self.named if parameters is None else list(parameters)
        return [
            {"params": [p for name, p in named if decays(name, p)], "weight_decay": self.train.weight_decay},
            {"params": [p for name, p in named if not decays(name, p)], "weight_decay": 0.0, "adapts": False},
        ]


def adamw(config: object, trainable: Trainable) -> torch.optim.Optimizer:
    """Build AdamW."""
    return AdamW(trainable.groups(), trainable.train, trainable.names, trainable.sharded)


def lamb(config: object, trainable: Trainable) -> torch.optim.Optimizer:
    """Build LAMB; biases and norms have no trust ratio."""
    return Lamb(trainable.groups(), trainable.train, trainable.names, trainable.sharded)


def build(
    parameters: Iterable[tuple[str, nn.Parameter]],
    train: Train,
    shard_groups: Mapping[str, ShardGroups] | None = None,
) -> torch.optim.Optimizer:
    """Build the core's optimizer that ``train`` names, without a job.

    Args:
        parameters, train, shard_groups: see :class:`Trainable`.
    """
    trainable = Trainable(named=list(parameters), train=train, shard_groups=shard_groups or {})
    return {"adamw": adamw, "lamb": lamb}[train.optimizer](None, trainable)


def decays(name: str, parameter: nn.Parameter) -> bool:
    """True where weight decay applies: to matrices and embeddings, not to biases and norms, which are vectors.

    A DTensor counts as its whole tensor.
    """
    return parameter.ndim > 1 and not name.endswith("bias")


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = value
