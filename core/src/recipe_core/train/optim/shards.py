"""Local shards of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.layouts.reduction.reducer import local_shard

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

ShardGroups = tuple[ProcessGroup, ...]
"""The process groups over which a tensor is sharded."""


def local_gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient of ``local_shard(parameter)``.

    A collective where backward left the gradient with other placements than its parameter (Partial, for example).
    """
    gradient = parameter.grad
    assert gradient is not None
    if is_dtensor(parameter):
        assert is_dtensor(gradient)
        if gradient.placements != parameter.placements:
            gradient = gradient.redistribute(parameter.device_mesh, parameter.placements)
        return local_shard(gradient)
    return gradient


def shard_groups(parameter: DTensor) -> ShardGroups:
    """The process groups over which to sum local sums to get those of the whole tensor."""
    mesh = parameter.device_mesh
    return tuple(mesh.get_group(axis) for axis, place in enumerate(parameter.placements) if not place.is_replicate())


def positions(parameter: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of the whole tensor, viewed as a matrix, that ``local_shard(parameter)`` holds.

    Rows are the first dimension, columns all others together; a vector is one row.

    Returns:
        int64 ``[rows]`` and ``[columns]`` on the CPU.
    """
    indices = [torch.arange(size) for size in parameter.shape]
    if is_dtensor(parameter):
        mesh = parameter.device_mesh
        for axis, place in enumerate(parameter.placements):
            if not place.is_replicate():
                dim: int = place.dim  # type: ignore[attr-defined]  # a Shard of one kind or another
                factor = getattr(place, "split_factor", 1)
                indices[dim] = _shard_of(indices[dim], factor, mesh.size(axis), mesh.get_local_rank(axis))
    if len(indices) < 2:
        return torch.zeros(1, dtype=torch.int64), indices[0] if indices else torch.zeros(1, dtype=torch.int64)
    columns = torch.zeros(1, dtype=torch.int64)
    for index, size in zip(indices[1:], parameter.shape[1:], strict=True):
        columns = (columns[:, None] * size + index).flatten()
    return indices[0], columns


def _shard_of(index: Tensor, factor: int, count: int, rank: int) -> Tensor:
    # A strided shard (FSDP on TP) takes chunk `rank` of `count` from each of `factor` blocks.
    outer = -(-len(index) // factor)
    blocks = index.split(outer) if outer else [index]
    sizes = [-(-len(block) // count) for block in blocks]
    return torch.cat([block[rank * size : (rank + 1) * size] for block, size in zip(blocks, sizes, strict=True)])
