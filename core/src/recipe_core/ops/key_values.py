"""Keys and values of the tokens before, so that each new token takes a forward pass of one position."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

_FIRST = 256
"""Tokens for which there is room at first; the room doubles when it is full."""


class KeyValueCache:
    """Keys and values of one text, for each block, up to ``capacity`` tokens.

    A forward pass of new tokens extends every block, and then adds their number to :attr:`length`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        """Tokens in the cache; 0 empties it."""
        self._stored: list[Tensor] = []  # of each block, keys and values: [2, 1, kv_heads, room, head_dim]

    def block(self, number: int) -> BlockCache:
        """Return the part for the block ``number``, counted from 0; blocks are first extended in order."""
        return BlockCache(self, number)

    def _extend(self, number: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        stop = self.length + key.shape[-2]
        if number == len(self._stored):
            self._stored.append(key.new_empty(2, *key.shape[:2], 0, key.shape[3]))
        stored = self._stored[number]
        if stop > stored.shape[-2]:
            room = min(self.capacity, max(stop, 2 * stored.shape[-2], _FIRST))
            wider = stored.new_empty(*stored.shape[:3], room, stored.shape[4])
            wider[..., : self.length, :] = stored[..., : self.length, :]
            self._stored[number] = stored = wider
        keys, values = stored[..., :stop, :]
        keys[..., self.length :, :], values[..., self.length :, :] = key, value
        return keys, values


class BlockCache(NamedTuple):
    """The part of a cache for one block."""

    cache: KeyValueCache
    number: int

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store ``key`` and ``value``, ``[1, kv_heads, new, head_dim]``; return those of all tokens so far."""
        return self.cache._extend(self.number, key, value)
