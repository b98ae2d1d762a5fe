"""Communication between the ranks of one layer, forward and backward.

Shoeybi and others, "Megatron-LM" (2019), and for split sequences Korthikanti and others, "Reducing Activation
Recomputation in Large Transformer Models" (2022).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

# PyTorch 2.13 calls them by other names and warns of these.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the ranks of ``group``, in a tensor of its own."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def gathered(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """The parts of all ranks, one after the other along ``dim``."""
    size = dist.get_world_size(group)
    parts = x.new_empty((size * x.shape[0], *x.shape[1:]))
    _all_gather(parts, x.contiguous(), group=group)
    return parts if dim in (0, -x.ndim) else torch.cat(parts.chunk(size), dim)


def scattered(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """This rank's part, along ``dim``, of the sum over ranks."""
    parts = x.chunk(dist.get_world_size(group), dim)
    part = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
    _reduce_scatter(part, torch.cat(parts), group=group)
    return part


def own_part(x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
    """This rank's part of ``x`` along ``dim``; a view."""
    return x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)]


class SumGradients(torch.autograd.Function):
    """Megatron's f. Forward: nothing. Backward: the sum over ranks, since each has the gradient of its own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return summed(grad, ctx.group), None


class Sum(torch.autograd.Function):
    """Megatron's g. Forward: the sum over ranks. Backward: nothing, since all of them go on with the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        return summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class Gather(torch.autograd.Function):
    """Forward: the parts of all ranks along ``dim``. Backward: this rank's part of the gradient.

    ``partial``: each rank has the gradient of its own part of what follows, so that they are summed; otherwise all of
    them computed the same.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, dim: int, partial: bool) -> Tensor:
        ctx.group, ctx.dim, ctx.partial = group, dim, partial
        return gathered(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        part = scattered if ctx.partial else own_part
        return part(grad, ctx.group, ctx.dim), None, None, None


class Scatter(torch.autograd.Function):
    """Forward: this rank's part, along ``dim``, of the sum over ranks. Backward: the parts of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return scattered(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return gathered(grad, ctx.group, ctx.dim), None, None
