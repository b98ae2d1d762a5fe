"""A model sharded over the tensor-parallel group of a Neuron process, with neuronx-distributed's layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import Deferred, Engine, Run
from recipe_core.layouts.tensor_parallel.heads import head_of, set_head
from recipe_core.layouts.tensor_parallel.plan import Assignment
from recipe_core.layouts.tensor_parallel.rng import peek_seed, seed_of
from recipe_core.layouts.ties import replace
from recipe_xla import neuronx


@dataclass(frozen=True)
class ParameterShard:
    """The shard of a parameter that a rank holds."""

    dim: int
    shape: torch.Size
    """Of the whole parameter."""
    most: int
    """Length of a shard along ``dim``, equal on every rank, so that graphs are."""
    held: int
    """How much of it belongs to the whole. The rest, on the last ranks, is zeros: tokens that do not exist."""

    def of(self, whole: Tensor, rank: int) -> Tensor:
        """The shard of ``rank``, a new tensor."""
        start = min(rank * self.most, self.shape[self.dim])
        part = whole.narrow(self.dim, start, self.held)
        return self.pad(part).clone(memory_format=torch.contiguous_format)

    def pad(self, part: Tensor) -> Tensor:
        """``part`` with zeros appended."""
        behind = [0, 0] * (part.ndim - 1 - self.dim) + [0, self.most - self.held]
        return F.pad(part, behind) if self.most > self.held else part


def cut(module: nn.Module, plan: Assignment, rank: int, size: int, device: torch.device) -> dict[str, ParameterShard]:
    """Replace the parameters of ``module`` that ``plan`` shards by the shards of ``rank`` of ``size``, on ``device``.

    Their values are those of one process; ``module`` may be on the meta device. Tied parameters stay tied; other
    parameters do not change.

    Returns:
        The shards, by name.
    """
    shards = {p: _shard_of(p, cut.dim, rank, size) for p, cut in plan.cuts.items() if cut.dim is not None}
    names: dict[Tensor, str] = {p: name for name, p in module.named_parameters() if p in shards}
    new = {p: _local_parameter(module, names[p], p, shard, rank, device) for p, shard in shards.items()}
    replace(module, new)
    return {names[p]: shard for p, shard in shards.items()}


def _shard_of(parameter: Tensor, dim: int, rank: int, size: int) -> ParameterShard:
    length = parameter.shape[dim]
    most = -(-length // size)
    return ParameterShard(dim, parameter.shape, most, max(0, min(most, length - rank * most)))


@torch.no_grad()
def _local_parameter(
    module: nn.Module, name: str, parameter: Tensor, shard: ParameterShard, rank: int, device: torch.device
) -> nn.Parameter:
    # At most one whole tensor exists at a time.
    whole = parameter.detach()
    if whole.is_meta:
        whole = cast("Deferred", module).initial_value(name, parameter.shape).to(parameter.dtype)
    return nn.Parameter(shard.of(whole, rank).to(device), parameter.requires_grad)


def exchange_layers(module: nn.Module, plan: Assignment, run: Run, rank: int, size: int) -> None:
    """Replace layers by those that the package has for their role; the parameters stay the same objects."""
    assert run.engine is not None
    vocabularies: dict[Tensor, int] = {}
    for name, role in plan.roles.items():
        owner = module.get_submodule(name)
        if role == "column":
            _put(module, name, neuronx.column(cast("nn.Linear", owner)))
        elif role == "row":
            _put(module, name, neuronx.row(cast("nn.Linear", owner)))
        elif role == "vocabulary_in":
            dense = cast("nn.Embedding", owner)
            vocabularies[dense.weight] = dense.num_embeddings
            _put(module, name, neuronx.embedding(dense, dense.weight.shape[0] * size))
        elif role == "vocabulary_out":
            linear = cast("nn.Linear", owner)
            vocabularies[linear.weight] = linear.out_features
            owner.forward = partial(_logits, linear)
        elif role == "split":
            owner.forward = partial(_split, owner, owner.forward, run.engine, rank, name)
    for weight, count in vocabularies.items():
        set_head(weight, neuronx.VocabularyHead(count))


def _put(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, layer)


def _logits(linear: nn.Linear, x: Tensor) -> Tensor:
    head = head_of(linear.weight)
    assert head is not None  # exchange_layers has set it
    return head.logits(x, linear.weight, linear.bias)


def _split(
    module: nn.Module, forward: Callable[..., Any], engine: Engine, rank: int, name: str, /, *args: Any, **kwargs: Any
) -> Any:
    # Each rank computes some heads, with random numbers of its own. The columns inside sum the gradients of each input.
    if not module.training:
        return forward(*args, **kwargs)
    with engine.fork_rng(seed_of(peek_seed(), "part", rank, name)):
        return forward(*args, **kwargs)
