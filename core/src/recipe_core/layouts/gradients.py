"""Norm and clipping of gradients, some of which may be DTensors; torch's functions cannot mix them with plain
tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """The 2-norm of all gradients; a collective of the ranks that share a DTensor."""
    gradients = list(gradients)
    if not any(isinstance(g, DTensor) for g in gradients):
        return nn.utils.get_total_norm(gradients)
    return sum_of_squares(gradients).sqrt()


def sum_of_squares(gradients: Iterable[Tensor]) -> Tensor:
    """The sum of the squares of all gradients, fp32; a collective of the ranks that share a DTensor.

    Each rank adds up its shards; a value that several ranks hold counts once.
    """
    plain: list[Tensor] = []
    sharded: dict[DeviceMesh, list[DTensor]] = {}
    for gradient in gradients:
        if isinstance(gradient, DTensor):
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
    plain = [p for p in with_gradient if not isinstance(p.grad, DTensor)]
    if plain:
        nn.utils.clip_grads_with_norm_(plain, limit, total)
    sharded = [p.grad.to_local() for p in with_gradient if isinstance(p.grad, DTensor)]
    if sharded:
        # The factor of torch.nn.utils.clip_grads_with_norm_, which leaves smaller gradients as they are.
        torch._foreach_mul_(sharded, (limit / (total + 1e-6)).clamp(max=1.0).to(sharded[0].device))


def _squares(tensors: list[Tensor]) -> Tensor:
    # fp32 ``[len(tensors)]``
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).square()


def _copies(gradient: DTensor) -> int:
    copies = 1
    for axis, placement in enumerate(gradient.placements):
        if isinstance(placement, Replicate):
            copies *= gradient.device_mesh.size(axis)
    return copies
