"""Communication of a tensor-parallel group, forward and backward.

Shoeybi and others, "Megatron-LM" (2019); for sequence parallelism Korthikanti and others, "Reducing Activation
Recomputation in Large Transformer Models" (2022).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

# PyTorch 2.13 renames them and warns of these.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduced(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the ranks of ``group``, in a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def all_gathered(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """The chunks of all ranks, concatenated along ``dim``."""
    size = dist.get_world_size(group)
    parts = x.new_empty((size * x.shape[0], *x.shape[1:]))
    _all_gather(parts, x.contiguous(), group=group)
    return parts if dim in (0, -x.ndim) else torch.cat(parts.chunk(size), dim)


def reduce_scattered(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """This rank's chunk, along ``dim``, of the sum over ranks."""
    parts = x.chunk(dist.get_world_size(group), dim)
    part = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
    _reduce_scatter(part, torch.cat(parts), group=group)
    return part


def local_chunk(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """This rank's chunk of ``x`` along ``dim``; a view."""
    return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]


class AllReduceGradient(torch.autograd.Function):
    """Megatron's f. Forward: identity. Backward: all-reduce, since each rank has the gradient of its own shard."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduced(grad, ctx.group), None


class AllReduce(torch.autograd.Function):
    """Megatron's g. Forward: all-reduce. Backward: identity, since all ranks continue with the same values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return all_reduced(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class AllGather(torch.autograd.Function):
    """Forward: the chunks of all ranks along ``dim``. Backward: this rank's chunk of the gradient.

    ``partial``: each rank has the gradient of its own part of the following computation, so that gradients are summed;
    otherwise all ranks computed the same.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, dim: int, partial: bool) -> Tensor:
        ctx.group, ctx.dim, ctx.partial = group, dim, partial
        return all_gathered(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        part = reduce_scattered if ctx.partial else local_chunk
        return part(grad, ctx.group, ctx.dim), None, None, None


class ReduceScatter(torch.autograd.Function):
    """Forward: this rank's chunk, along ``dim``, of the sum over ranks. Backward: the chunks of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return reduce_scattered(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return all_gathered(grad, ctx.group, ctx.dim), None, None
