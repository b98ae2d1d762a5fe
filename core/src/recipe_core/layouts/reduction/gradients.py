"""Norm and clipping of gradients, some of which may be DTensors; torch's functions cannot mix them with plain
tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from recipe_core.engine.dtensor import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all gradients; a collective of the ranks that share a DTensor."""
    gradients = list(gradients)
    if not any(is_dtensor(g) for g in gradients):
        return nn.utils.get_total_norm(gradients)
    return sum_of_squares(gradients).sqrt()


def sum_of_squares(gradients: Iterable[Tensor]) -> Tensor:
    """The sum of the squares of all gradients, fp32; a collective of the ranks that share a DTensor.

    Each rank adds up its shards; a value that several ranks hold counts once.
    """
    plain: list[Tensor] = []
    sharded: dict[DeviceMesh, list[DTensor]] = {}
    for gradient in gradients:
        if is_dtensor(gradient):
            sharded.setdefault(gradient.device_mesh, []).append(gradient)
        else:
            plain.append(gradient)
    totals = [_squares(plain).sum()] if plain else []
    for mesh, group in sharded.items():
        shares = [1.0 / _copies(gradient) for gradient in group]
        squares = _squares([gradient.to_local() for gradient in group])
        total = (squares * squares.new_tensor(shares)).sum()
        for axis in range(mesh.ndim):
            dist.all_reduce(total, group=mesh.get_group(axis))
        totals.append(total)
    return torch.stack(totals).sum() if totals else torch.zeros(())


def clip(parameters: Iterable[nn.Parameter], limit: float, total: Tensor) -> None:
    """Scale the gradients of ``parameters``, whose norm is ``total``, to a norm of at most ``limit``."""
    with_gradient = [p for p in parameters if p.grad is not None]
    plain = [p for p in with_gradient if not is_dtensor(p.grad)]
    if plain:
        nn.utils.clip_grads_with_norm_(plain, limit, total)
    sharded = [p.grad.to_local() for p in with_gradient if is_dtensor(p.grad)]
    if sharded:
        # The factor of torch.nn.utils.clip_grads_with_norm_, which leaves smaller gradients as they are.
        torch._foreach_mul_(sharded, (limit / (total + 1e-6)).clamp(max=1.0).to(sharded[0].device))


def _squares(tensors: list[Tensor]) -> Tensor:
    # fp32 ``[len(tensors)]``
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).square()


def _copies(gradient: DTensor) -> int:
    copies = 1
    for axis, placement in enumerate(gradient.placements):
        if placement.is_replicate():
            copies *= gradient.device_mesh.size(axis)
    return copies
