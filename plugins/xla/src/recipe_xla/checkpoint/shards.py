"""Shards of a tensor on the devices of one process, copied to the host: each once, however many devices have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from recipe_core import CheckpointError
from recipe_core.checkpoint.lazy import Offsets, Pieces


def pieces(shape: torch.Size, parts: Sequence[tuple[Offsets, Tensor]], name: str = "a tensor") -> Pieces:
    """The tensor of ``shape`` that ``parts`` make up; of parts at one place (replicas) the first is taken.

    Raises:
        CheckpointError: the parts leave out something of it, or overlap.
    """
    once: dict[Offsets, Tensor] = {}
    for offsets, part in parts:
        once.setdefault(offsets, part)
    if sum(part.numel() for part in once.values()) != shape.numel():
        found = ", ".join(f"{list(part.shape)} at {list(offsets)}" for offsets, part in once.items())
        raise CheckpointError(f"{name}: its shape is {list(shape)}, and its devices hold {found}")
    taken = tuple(once.items())

    def read() -> Tensor:
        whole = torch.empty(shape, dtype=taken[0][1].dtype)
        for offsets, part in taken:
            whole[tuple(slice(start, start + size) for start, size in zip(offsets, part.shape, strict=True))] = part
        return whole

    return Pieces(shape, taken[0][1].dtype, read, parts=taken)


def on_host(tensors: Sequence[Tensor]) -> list[Tensor | Pieces]:
    """Copies of XLA tensors: those that are whole, and of others the parts that the devices hold.

    One transfer for all of the one kind and one for all of the other, and no graph, unless something was left to
    compute.
    """
    import torch_xla

    is_cut = ["devices=" in torch_xla._XLAC._get_xla_sharding_spec(tensor) for tensor in tensors]
    groups: dict[bool, list[Tensor]] = {False: [], True: []}
    for tensor, which in zip(tensors, is_cut, strict=True):
        groups[which].append(tensor)
    found: dict[bool, Iterator[Any]] = {
        False: iter(torch_xla._XLAC._xla_get_cpu_tensors(groups[False])),
        True: _parts(groups[True]),
    }
    return [next(found[which]) for which in is_cut]


def _parts(tensors: Sequence[Tensor]) -> Iterator[Pieces]:
    """Those that are cut, in the parts that the devices hold."""
    import torch_xla

    held: list[Any] = torch_xla._XLAC._get_local_shards(tensors)
    places: list[Any] = torch_xla._XLAC._get_local_shard_replica_and_indices(tensors)
    for tensor, shards, of_tensor in zip(tensors, held, places, strict=True):
        parts = []
        for (values, _), (_, slices) in zip(shards, of_tensor, strict=True):
            unpadded = values[tuple(slice(0, place.stop - place.start) for place in slices)]
            parts.append((tuple(place.start for place in slices), unpadded.clone()))
        yield pieces(tensor.shape, parts)
