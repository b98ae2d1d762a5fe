"""A model cut over a team of Neuron's processes, and neuronx-distributed's layers in the places that the plan names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core import Deferred, Engine, Run
from recipe_core.layouts.tensor_parallel.heads import give, head_of
from recipe_core.layouts.tensor_parallel.plan import Assignment
from recipe_core.layouts.tensor_parallel.rng import drawn, seed_of
from recipe_core.layouts.ties import replace
from recipe_xla import neuronx


@dataclass(frozen=True)
class Share:
    """The shard of a parameter that a rank holds."""

    dim: int
    shape: torch.Size
    """Of the whole."""
    most: int
    """How long a share is along ``dim``, on every rank: graphs are the same on all."""
    held: int
    """So many of it are of the whole. Behind them, on the last ranks, may be zeros: words that do not exist."""

    def of(self, whole: Tensor, rank: int) -> Tensor:
        """The share of ``rank``, a tensor of its own."""
        start = min(rank * self.most, self.shape[self.dim])
        part = whole.narrow(self.dim, start, self.held)
        return self.filled(part).clone(memory_format=torch.contiguous_format)

    def filled(self, part: Tensor) -> Tensor:
        """``part`` with the zeros behind it."""
        behind = [0, 0] * (part.ndim - 1 - self.dim) + [0, self.most - self.held]
        return F.pad(part, behind) if self.most > self.held else part


def cut(module: nn.Module, found: Assignment, rank: int, size: int, device: torch.device) -> dict[str, Share]:
    """Leave of ``module`` what ``rank`` of a team of ``size`` holds, on ``device``: its shares of what is to be cut.

    Each rank takes them from the values that one process would begin with; ``module`` may be without values (on the
    meta device). Ties stay. What is not cut stays as and where it is.

    Returns:
        Names of the parameters that were cut, and how.
    """
    shares = {p: _share(p, cut.dim, rank, size) for p, cut in found.cuts.items() if cut.dim is not None}
    names: dict[Tensor, str] = {p: name for name, p in module.named_parameters() if p in shares}
    new = {p: _placed(module, names[p], p, share, rank, device) for p, share in shares.items()}
    replace(module, new)
    return {names[p]: share for p, share in shares.items()}


def _share(parameter: Tensor, dim: int, rank: int, size: int) -> Share:
    length = parameter.shape[dim]
    most = -(-length // size)
    return Share(dim, parameter.shape, most, max(0, min(most, length - rank * most)))


@torch.no_grad()
def _placed(
    module: nn.Module, name: str, parameter: Tensor, share: Share, rank: int, device: torch.device
) -> nn.Parameter:
    """This rank's share of a parameter, on ``device``; one whole tensor exists at a time beside what is held."""
    whole = parameter.detach()
    if whole.is_meta:
        whole = cast("Deferred", module).initial_value(name, parameter.shape).to(parameter.dtype)
    return nn.Parameter(share.of(whole, rank).to(device), parameter.requires_grad)


def exchange_layers(module: nn.Module, found: Assignment, run: Run, rank: int, size: int) -> None:
    """Put the package's layers in the place of those whose role it has one for; they get the same parameters."""
    assert run.engine is not None
    words: dict[Tensor, int] = {}
    for name, role in found.roles.items():
        owner = module.get_submodule(name)
        if role == "column":
            _put(module, name, neuronx.column(cast("nn.Linear", owner)))
        elif role == "row":
            _put(module, name, neuronx.row(cast("nn.Linear", owner)))
        elif role == "vocabulary_in":
            dense = cast("nn.Embedding", owner)
            words[dense.weight] = dense.num_embeddings
            _put(module, name, neuronx.embedding(dense, dense.weight.shape[0] * size))
        elif role == "vocabulary_out":
            linear = cast("nn.Linear", owner)
            words[linear.weight] = linear.out_features
            owner.forward = partial(_logits, linear)
        elif role == "split":
            owner.forward = partial(_split, owner, owner.forward, run.engine, rank, name)
    for weight, count in words.items():
        give(weight, neuronx.VocabularyHead(count))


def _put(module: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, layer)


def _logits(linear: nn.Linear, x: Tensor) -> Tensor:
    head = head_of(linear.weight)
    assert head is not None  # it was given one together with its forward
    return head.logits(x, linear.weight, linear.bias)


def _split(module: nn.Module, forward: Callable[..., Any], engine: Engine, rank: int, name: str, *args: Any) -> Any:
    """Each rank computes some heads, with random numbers of its own."""
    if not module.training:
        return forward(*args)
    with engine.fork_rng(seed_of(drawn(), "part", rank, name)):
        return forward(*args)
