"""The computation of a submodule in each role of a tensor plan.

The residual stream between the blocks is whole on every rank, or, with sequence parallelism, split along the sequence
(the dimension before the last). Each role says how its module takes part in that::

    vocabulary_in   ids -> stream            rows of an embedding; sums
    column          stream -> features       rows of a matrix; each rank has some of the features (whole heads)
    row             features -> stream       columns of a matrix; sums
    split           stream -> stream         around columns and rows: enters once for all, has its own random numbers
    sequence        stream -> stream         each position by itself (norms; ids -> stream in an embedding)
    replicated      stream -> whole          all ranks compute the same of the whole sequence
    whole           whole -> whole           behind a replicated one: all ranks compute the same
    vocabulary_out  whole -> whole           rows of the output; its logits are put together again

The parameters are DTensors; forward computes with this rank's part of them, a plain tensor, and says itself what the
ranks exchange: less work for the host than operations on DTensors, and the same gradients.
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
from torch.distributed.tensor import DTensor

from recipe_core.layouts.tensor_parallel.collectives import Gather, Scatter, Sum, SumGradients, own_part
from recipe_core.layouts.tensor_parallel.rng import drawn, stream
from recipe_core.layouts.tensor_parallel.rows import joined, rows_of

SEQUENCE = -2
"""The dimension of the residual stream that sequence parallelism splits."""


@dataclass
class TpGroup:
    """The ranks that share each layer, as this one sees them."""

    group: ProcessGroup
    rank: int
    size: int
    device: torch.device
    sequence: bool
    """The residual stream is split along the sequence. Switched off where a sequence does not divide."""
    seed: int = 0
    """Seed of the random numbers of replicated modules, where others differ between ranks."""
    partial: list[tuple[nn.Module, str]] = field(default_factory=list)
    """Parameters (owner and name) that are whole on every rank, while each rank has only its part of their gradient."""

    def enter(self, x: Tensor) -> Tensor:
        """From the stream to where each rank computes a part of the features."""
        if self.sequence:
            return _apply(Gather, x, self.group, SEQUENCE, True)
        return _apply(SumGradients, x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """From this rank's share of a sum to the stream."""
        return _apply(Scatter, x, self.group, SEQUENCE) if self.sequence else _apply(Sum, x, self.group)

    def whole(self, x: Tensor) -> Tensor:
        """From the stream to the whole sequence, of which all ranks then compute the same."""
        return _apply(Gather, x, self.group, SEQUENCE, False) if self.sequence else x


def take(module: nn.Module, role: str, name: str, tp: TpGroup, *, inside: bool) -> None:
    """Have ``module`` compute in its ``role``; ``inside`` a split module, the stream was entered already."""
    module.forward = partial(_FORWARD[role], module, module.forward, name, tp, inside)


def use_local_parameters(module: nn.Module) -> None:
    """Have a module without a role of its own compute with plain tensors."""
    module.forward = partial(_locally, module, module.forward)


def start(module: nn.Module, tp: TpGroup) -> None:
    """Have the whole model give each rank random numbers of its own, where each has another part of the sequence."""
    module.forward = partial(_start, module, module.forward, tp)


def _start(module: nn.Module, forward: Callable[..., Any], tp: TpGroup, *args: Any, **kwargs: Any) -> Any:
    if not (module.training and tp.sequence):
        return forward(*args, **kwargs)
    tp.seed = drawn()
    with stream(tp.device, tp.seed, "rank", tp.rank):
        return forward(*args, **kwargs)


def _column(
    module: nn.Module, forward: Callable[..., Tensor], name: str, tp: TpGroup, inside: bool, x: Tensor
) -> Tensor:
    output: Tensor = _locally(module, forward, x if inside else tp.enter(x))
    return output


def _row(module: nn.Linear, forward: object, name: str, tp: TpGroup, inside: bool, x: Tensor) -> Tensor:
    with _local(module):
        output = tp.leave(F.linear(x, module.weight))
        return output if module.bias is None else output + module.bias.to(output.dtype)


def _vocabulary_in(
    module: nn.Embedding, forward: Callable[..., Tensor], name: str, tp: TpGroup, inside: bool, ids: Tensor
) -> Tensor:
    assert isinstance(module.weight, DTensor)
    first = rows_of(module.weight).first
    with _local(module):
        rows, own = module.weight.shape[0], ids - first
        others = (own < 0) | (own >= rows)
        padding = -1 if module.padding_idx is None else module.padding_idx - first
        embedded = F.embedding(own.masked_fill(others, 0), module.weight, padding if 0 <= padding < rows else None)
        return tp.leave(embedded.masked_fill(others[..., None], 0))  # which also keeps gradients from the stand-in


def _vocabulary_out(
    module: nn.Linear, forward: Callable[..., Tensor], name: str, tp: TpGroup, inside: bool, x: Tensor
) -> Tensor:
    assert isinstance(module.weight, DTensor)
    return joined(_locally(module, forward, _apply(SumGradients, x, tp.group)), rows_of(module.weight))


def _sequence(
    module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, x: Tensor, *args: Any
) -> Any:
    if tp.sequence and isinstance(module, nn.Embedding):
        x = own_part(x, tp.group, -1)
    return _locally(module, forward, x, *args)


def _replicated(
    module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, x: Tensor, *args: Any
) -> Any:
    return _whole(module, forward, name, tp, inside, tp.whole(x), *args)


def _whole(module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, *args: Any) -> Any:
    if not (tp.sequence and module.training):
        return _locally(module, forward, *args)
    with stream(tp.device, tp.seed, "module", name):  # not the rank's own, see start()
        return _locally(module, forward, *args)


def _split(
    module: nn.Module, forward: Callable[..., Any], name: str, tp: TpGroup, inside: bool, x: Tensor, *args: Any
) -> Any:
    x = tp.enter(x)
    if not module.training:
        return _locally(module, forward, x, *args)
    with stream(tp.device, drawn(), "part", tp.rank, name):
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
    """The module's own parameters as plain tensors, with gradients that find their way to the DTensors."""
    sharded = dict(module._parameters)
    for name, parameter in sharded.items():
        if isinstance(parameter, DTensor):
            module._parameters[name] = parameter.to_local()
    try:
        yield
    finally:
        module._parameters.update(sharded)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    result: Tensor = function.apply(*args)
    return result
