"""Norms of whole tensors from their slices, which may be on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from recipe_core.train.optim.shards import ShardGroups
from recipe_core.train.optim.slices import Slice


class Norms:
    """Norms of tensors and of their updates.

    Args:
        count: number of tensors.
        shard_groups: the process groups over which each of the tensors is sharded.
        like: a tensor of the device and dtype to compute with.
    """

    def __init__(self, count: int, shard_groups: ShardGroups, like: Tensor) -> None:
        self._count, self._shard_groups, self._like = count, shard_groups, like
        self._owners: list[int] = []
        self._weights: list[Tensor] = []
        self._updates: list[Tensor] = []

    def add(self, chunk: Sequence[Slice], weights: list[Tensor], updates: list[Tensor]) -> None:
        """Accumulate the slices of ``chunk``."""
        self._owners += [part.tensor for part in chunk]
        self._weights += torch._foreach_norm(weights)
        self._updates += torch._foreach_norm(updates)

    def ratios(self, limit: float) -> Tensor:
        """``norm(weight) / norm(update)`` of each tensor, ``[count]``; at most ``limit``, unless that is 0.

        1 where one of the norms is 0. A collective over the ranks that share the tensors.
        """
        whole = self._like.new_zeros(2, self._count)
        if self._owners:  # this rank may hold no shard of them
            squares = torch.stack([torch.stack(self._weights), torch.stack(self._updates)]).square_()
            whole.index_add_(1, _index(tuple(self._owners), whole.device), squares)
        for group in self._shard_groups:
            dist.all_reduce(whole, group=group)
        weights, updates = whole.sqrt_()
        quotients = torch.where((weights > 0) & (updates > 0), weights / updates, 1.0)
        return quotients.clamp_(max=limit) if limit else quotients


@lru_cache(maxsize=4096)
def _index(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    # cached; created without synchronisation
    return torch.tensor(numbers).to(device, non_blocking=True)
