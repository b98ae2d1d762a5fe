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

``split``, ``sequence`` and ``replicated`` modules may have further inputs, positional or keyword. A plan names those of
the stream, ``split(hidden, memory)``; if it names none, the first floating-point tensor is. All others are whole on
every rank. Every input gets its whole gradient.

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
from recipe_core.layouts.tensor_parallel.inputs import Inputs
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

    def enter_whole(self, x: Tensor) -> Tensor:
        """The same for a tensor that is whole on every rank."""
        return _apply(AllReduceGradient, x, self.group) if x.requires_grad else x

    def leave(self, x: Tensor) -> Tensor:
        """From this rank's summand to the stream."""
        return _apply(ReduceScatter, x, self.group, SEQUENCE) if self.sequence else _apply(AllReduce, x, self.group)

    def whole(self, x: Tensor) -> Tensor:
        """From the stream to the whole sequence, replicated."""
        return _apply(AllGather, x, self.group, SEQUENCE, False) if self.sequence else x


def set_role(module: nn.Module, role: str, inputs: Inputs, tp: TpGroup, *, inside: bool) -> None:
    """Have ``module`` compute in its ``role``; ``inside`` a split module, which has entered the stream."""
    module.forward = partial(_FORWARD[role], module, module.forward, inputs, tp, inside)


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
    module: nn.Module, forward: Callable[..., Tensor], inputs: Inputs, tp: TpGroup, inside: bool, /, input: Tensor
) -> Tensor:
    output: Tensor = _locally(module, forward, input if inside else tp.enter(input))
    return output


def _row(module: nn.Linear, forward: object, inputs: Inputs, tp: TpGroup, inside: bool, /, input: Tensor) -> Tensor:
    with _local(module):
        product = getattr(module, "product", None)  # of a layer with an adapter
        output = tp.leave(F.linear(input, module.weight) if product is None else product(input))
        return output if module.bias is None else output + module.bias.to(output.dtype)


def _vocabulary_in(
    module: nn.Embedding, forward: Callable[..., Tensor], inputs: Inputs, tp: TpGroup, inside: bool, /, input: Tensor
) -> Tensor:
    assert is_dtensor(module.weight)
    first = row_shard(module.weight).first
    with _local(module):
        rows, own = module.weight.shape[0], input - first
        others = (own < 0) | (own >= rows)
        padding = -1 if module.padding_idx is None else module.padding_idx - first
        embedded = F.embedding(own.masked_fill(others, 0), module.weight, padding if 0 <= padding < rows else None)
        return tp.leave(embedded.masked_fill(others[..., None], 0))  # also keeps their gradients from row 0


def _vocabulary_out(
    module: nn.Linear, forward: Callable[..., Tensor], inputs: Inputs, tp: TpGroup, inside: bool, /, input: Tensor
) -> Tensor:
    assert is_dtensor(module.weight)
    logits = _locally(module, forward, _apply(AllReduceGradient, input, tp.group))
    return gather_logits(logits, row_shard(module.weight))


def _sequence(
    module: nn.Module, forward: Callable[..., Any], inputs: Inputs, tp: TpGroup, inside: bool, /, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    if not tp.sequence:
        return _locally(module, forward, *args, **kwargs)
    if isinstance(module, nn.Embedding):
        (ids,) = (*args, *kwargs.values())
        return _locally(module, forward, local_chunk(ids, tp.group, -1))

    def unclear(first: Tensor | None, other: Tensor) -> bool:
        return other.requires_grad and not _same_positions(first, other)

    def whole(x: Tensor) -> Tensor:  # without names, what has the positions of the first is of the stream as well
        return tp.enter_whole(x) if inputs.stream else x

    new_args, new_kwargs = inputs.map(args, kwargs, lambda x: x, whole, unclear)
    return _locally(module, forward, *new_args, **new_kwargs)


def _replicated(
    module: nn.Module, forward: Callable[..., Any], inputs: Inputs, tp: TpGroup, inside: bool, /, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    if not tp.sequence:
        return _locally(module, forward, *args, **kwargs)

    def unclear(first: Tensor | None, other: Tensor) -> bool:
        return other.is_floating_point() and (first is None or _same_positions(first, other))

    new_args, new_kwargs = inputs.map(args, kwargs, tp.whole, lambda x: x, unclear)
    return _whole(module, forward, inputs, tp, inside, *new_args, **new_kwargs)


def _whole(
    module: nn.Module, forward: Callable[..., Any], inputs: Inputs, tp: TpGroup, inside: bool, /, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    if not (tp.sequence and module.training):
        return _locally(module, forward, *args, **kwargs)
    with stream(tp.device, tp.seed, "module", inputs.owner):  # not the rank's own, see seed_ranks()
        return _locally(module, forward, *args, **kwargs)


def _split(
    module: nn.Module, forward: Callable[..., Any], inputs: Inputs, tp: TpGroup, inside: bool, /, *args: Any,
    **kwargs: Any,
) -> Any:  # fmt: skip
    new_args, new_kwargs = inputs.map(args, kwargs, tp.enter, tp.enter_whole, _may_be_split if tp.sequence else None)
    if not module.training:
        return _locally(module, forward, *new_args, **new_kwargs)
    with stream(tp.device, peek_seed(), "part", tp.rank, inputs.owner):
        return _locally(module, forward, *new_args, **new_kwargs)


def _may_be_split(first: Tensor | None, other: Tensor) -> bool:
    # Tables and masks, which need no gradient, have other shapes than the stream.
    same = first is None or (other.ndim, other.shape[-1:]) == (first.ndim, first.shape[-1:])
    return other.requires_grad or (other.is_floating_point() and same)


def _same_positions(first: Tensor | None, other: Tensor) -> bool:
    return first is not None and first.shape[:-1] == other.shape[:-1]


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
