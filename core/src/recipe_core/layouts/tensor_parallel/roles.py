"""The computation of a submodule in each role of a tensor plan.

The residual stream between the blocks is replicated, or, with sequence parallelism, split along the sequence (the
dimension before the last). The roles::

    vocabulary_in   ids -> stream            rows of an embedding; sums
    column          stream -> features       rows of a matrix; each rank has some of the features (whole heads)
    row             features -> stream       columns of a matrix; sums
    split           stream -> stream         around columns and rows: enters once for all, own random numbers
    sequence        stream -> stream         position by position (norms; ids -> stream in an embedding)
    replicated      stream -> whole          all ranks compute the same of the whole sequence
    whole           whole -> whole           after a replicated one: all ranks compute the same
    vocabulary_out  whole -> whole           rows of the output; gathers the logits

The parameters are DTensors; forward computes with their local shards, plain tensors, and calls the collectives itself:
less work for the host than operations on DTensors, with the same gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.layouts.tensor_parallel.collectives import (
    AllGather,
    AllReduce,
    AllReduceGradient,
    ReduceScatter,
    local_chunk,
)
from recipe_core.layouts.tensor_parallel.rng import peek_seed, stream
from recipe_core.layouts.tensor_parallel.rows import gather_logits, row_shard

SEQUENCE = -2
"""The dimension of the residual stream that sequence parallelism splits."""


@dataclass
class TpGroup:
    """The tensor-parallel group of this rank."""

    group: ProcessGroup
    rank: int
    size: int
    device: torch.device
    sequence: bool
    """The residual stream is split along the sequence. Switched off for sequences that do not divide."""
    seed: int = 0
    """Seed of the random numbers of replicated modules; those of other modules differ between ranks."""
    partial: list[tuple[nn.Module, str]] = field(default_factory=list)
    """Replicated parameters (owner and name) of whose gradient each rank has only its part."""

    def enter(self, x: Tensor) -> Tensor:
        """From the stream to a region in which each rank computes a part of the features."""
        if self.sequence:
            return _apply(AllGather, x, self.group, SEQUENCE, True)
        return _apply(AllReduceGradient, x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """From this rank's summand to the stream."""
        return _apply(ReduceScatter, x, self.group, SEQUENCE) if self.sequence else _apply(AllReduce, x, self.group)

    def whole(self, x: Tensor) -> Tensor:
        """From the stream to the whole sequence, replicated."""
        return _apply(AllGather, x, self.group, SEQUENCE, False) if self.sequence else x


def set_role(module: nn.Module, role: str, name: str, tp: TpGroup, *, inside: bool) -> None:
    """Have ``module`` compute in its ``role``; ``inside`` a split module, which has entered the stream."""
    module.forward = partial(_FORWARD[role], module, module.forward, name, tp, inside)


def use_local_parameters(module: nn.Module) -> None:
    """Have a module without a role of its own compute with local shards."""
    module.forward = partial(_locally, module, module.forward)


def seed_ranks(module: nn.Module, tp: TpGroup) -> None:
    """Have the whole model use different random numbers on each rank, if each has another part of the sequence."""
    module.forward = partial(_with_rank_seed, module, module.forward, tp)


def _with_rank_seed(module: nn.Module, forward: Callable[..., Any], tp: TpGroup, *args: Any, **kwargs: Any) -> Any:
    if not (module.training and tp.sequence):
        return forward(*args, **kwargs)
    tp.seed = peek_seed()
    with stream(tp.device, tp.seed, "rank", tp.rank):
        return forward(*args, **kwargs)


def _column(
    module: nn.Module, forward: Callable[..., Tensor], name: str, tp: TpGroup, inside: bool, x: Tensor
) -> Tensor:
    output: Tensor = _locally(module, forward, x if inside else tp.enter(x))
    return output


def _row(module: nn.Linear, forward: object, name: str, tp: TpGroup, inside: bool, x: Tensor) -> Tensor:
    with _local(module):
        product = getattr(module, "product", None)  # of a layer with an adapter
        output = tp.leave(F.linear(x, module.weight) if product is None else product(x))
        return output if module.bias is None else output + module.bias.to(output.dtype)


def _vocabulary_in(
    module: nn.Embedding, forward: Callable[..., Tensor], name: str, tp: TpGroup, inside: bool, ids: Tensor
) -> Tensor:
    assert is_dtensor(module.weight)
    first = row_shard(module.weight).first
    with _local(module):
        rows, own = module.weight.shape[0], ids - first
        others = (own < 0) | (own >= rows)
        padding = -1 if module.padding_idx is None else module.padding_idx - first
        embedded = F.embedding(own.masked_fill(others, 0), module.weight, padding if 0 <= padding < rows else None)
        return tp.leave(embedded.masked_fill(others[..., None], 0))  # also keeps their gradients from row 0


def _vocabulary_out(
    module: nn.Linear, forward: Callable[..., Tensor], name: str, tp: TpGroup, inside: bool, x: Tensor
) -> Tensor:
    assert is_dtensor(module.weight)
    return gather_logits(_locally(module, forward, _apply(AllReduceGradient, x, tp.group)), row_shard(module.weight))


def _sequence(
    module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, x: Tensor, *args: Any
) -> Any:
    if tp.sequence and isinstance(module, nn.Embedding):
        x = local_chunk(x, tp.group, -1)
    return _locally(module, forward, x, *args)


def _replicated(
    module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, x: Tensor, *args: Any
) -> Any:
    return _whole(module, forward, name, tp, inside, tp.whole(x), *args)


def _whole(module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, *args: Any) -> Any:
    if not (tp.sequence and module.training):
        return _locally(module, forward, *args)
    with stream(tp.device, tp.seed, "module", name):  # not the rank's own, see seed_ranks()
        return _locally(module, forward, *args)


def _split(
    module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, x: Tensor, *args: Any
) -> Any:
    x = tp.enter(x)
    if not module.training:
        return _locally(module, forward, x, *args)
    with stream(tp.device, peek_seed(), "part", tp.rank, name):
        return _locally(module, forward, x, *args)


_FORWARD: dict[str, Callable[..., Any]] = {
    "column": _column,
    "row": _row,
    "vocabulary_in": _vocabulary_in,
    "vocabulary_out": _vocabulary_out,
    "sequence": _sequence,
    "replicated": _replicated,
    "whole": _whole,
    "split": _split,
}


def _locally(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _local(module):
        return forward(*args, **kwargs)


@contextmanager
def _local(module: nn.Module) -> Iterator[None]:
    # to_local() passes gradients back to the DTensors.
    sharded = dict(module._parameters)
    for name, parameter in sharded.items():
        if is_dtensor(parameter):
            module._parameters[name] = parameter.to_local()
    try:
        yield
    finally:
        module._parameters.update(sharded)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    result: Tensor = function.apply(*args)
    return result
