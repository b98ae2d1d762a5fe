"""Shards of a tensor on the devices of one process, copied to the host; replicas once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from recipe_core import CheckpointError
from recipe_core.checkpoint.lazy import Offsets, ShardedTensorView


def pieces(shape: torch.Size, parts: Sequence[tuple[Offsets, Tensor]], name: str = "a tensor") -> ShardedTensorView:
    """The tensor of ``shape`` that consists of ``parts``; of replicas (equal offsets) the first is taken.

    Raises:
        CheckpointError: the parts do not cover the tensor, or overlap.
    """
    once: dict[Offsets, Tensor] = {}
    for offsets, part in parts:
        once.setdefault(offsets, part)
    if sum(part.numel() for part in once.values()) != shape.numel():
        held = ", ".join(f"{list(part.shape)} at {list(offsets)}" for offsets, part in once.items())
        raise CheckpointError(f"{name}: its shape is {list(shape)}, and its devices hold {held}")
    taken = tuple(once.items())

    def read() -> Tensor:
        whole = torch.empty(shape, dtype=taken[0][1].dtype)
        for offsets, part in taken:
            whole[tuple(slice(start, start + size) for start, size in zip(offsets, part.shape, strict=True))] = part
        return whole

    return ShardedTensorView(shape, taken[0][1].dtype, read, parts=taken)


def on_host(tensors: Sequence[Tensor]) -> list[Tensor | ShardedTensorView]:
    """Copies of XLA tensors: replicated ones as tensors, sharded ones as :class:`ShardedTensorView`.

    One transfer for each of the two kinds, and no graph unless operations are pending.
    """
    import torch_xla

    is_cut = ["devices=" in torch_xla._XLAC._get_xla_sharding_spec(tensor) for tensor in tensors]
    groups: dict[bool, list[Tensor]] = {False: [], True: []}
    for tensor, sharded in zip(tensors, is_cut, strict=True):
        groups[sharded].append(tensor)
    copies: dict[bool, Iterator[Any]] = {
        False: iter(torch_xla._XLAC._xla_get_cpu_tensors(groups[False])),
        True: _parts(groups[True]),
    }
    return [next(copies[sharded]) for sharded in is_cut]


def _parts(tensors: Sequence[Tensor]) -> Iterator[ShardedTensorView]:
    import torch_xla

    held: list[Any] = torch_xla._XLAC._get_local_shards(tensors)
    places: list[Any] = torch_xla._XLAC._get_local_shard_replica_and_indices(tensors)
    for tensor, shards, of_tensor in zip(tensors, held, places, strict=True):
        parts = []
        for (values, _), (_, slices) in zip(shards, of_tensor, strict=True):
            unpadded = values[tuple(slice(0, place.stop - place.start) for place in slices)]
            parts.append((tuple(place.start for place in slices), unpadded.clone()))
        yield pieces(tensor.shape, parts)
