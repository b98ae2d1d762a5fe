"""Norms of whole tensors from their pieces, which may lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from recipe_core.train.optim.pieces import Piece
from recipe_core.train.optim.shards import Groups


class Norms:
    """Norms of tensors and of their updates.

    Args:
        count: of the tensors.
        shard_groups: the groups of ranks over which each of the tensors is sharded.
        like: a tensor of the device and dtype to compute with.
    """

    def __init__(self, count: int, shard_groups: Groups, like: Tensor) -> None:
        self._count, self._shard_groups, self._like = count, shard_groups, like
        self._owners: list[int] = []
        self._weights: list[Tensor] = []
        self._updates: list[Tensor] = []

    def add(self, chunk: Sequence[Piece], weights: list[Tensor], updates: list[Tensor]) -> None:
        """Count the pieces of ``chunk`` in."""
        self._owners += [piece.tensor for piece in chunk]
        self._weights += torch._foreach_norm(weights)
        self._updates += torch._foreach_norm(updates)

    def ratios(self, limit: float) -> Tensor:
        """``norm(weight) / norm(update)`` of each tensor, ``[count]``; at most ``limit``, unless that is 0.

        1 where one of the norms is 0. All ranks that share the tensors call it, since it sums over them.
        """
        whole = self._like.new_zeros(2, self._count)
        if self._owners:  # this rank may hold nothing of them
            squares = torch.stack([torch.stack(self._weights), torch.stack(self._updates)]).square_()
            whole.index_add_(1, _index(tuple(self._owners), whole.device), squares)
        for group in self._shard_groups:
            dist.all_reduce(whole, group=group)
        weights, updates = whole.sqrt_()
        quotients = torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)
        return quotients.clamp_(max=limit) if limit else quotients


@lru_cache(maxsize=4096)
def _index(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept; made without waiting for the device."""
    return torch.tensor(numbers).to(device, non_blocking=True)
