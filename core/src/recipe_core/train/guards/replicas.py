"""Bitwise comparison of replicated values between ranks, which finds a drift before it is saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from recipe_core.engine.digest import digest
from recipe_core.engine.dtensor import is_dtensor
from recipe_core.engine.protocol import Ranks
from recipe_core.errors import ReplicaError
from recipe_core.layouts.parallel import Parallel, plain_name
from recipe_core.settings.fill import flat

_SHOWN = 5

Holding = tuple[tuple[int, ...], tuple[tuple[str, int], ...]]
"""Pipeline stages that hold a tensor, and the coordinate on each mesh axis that shards it: equal for replicas."""
Digests = dict[Holding, dict[str, int]]


def check(ranks: Ranks, model: Parallel, state: Mapping[str, Any], step: int) -> None:
    """Compare replicas of the leaves of ``state`` between ranks, bit by bit; a collective.

    Each rank hashes its replicas on their device, and ranks exchange one small object each. Tensors of a traced engine
    must be on the host, since hashing on the device would compile other graphs.

    Raises:
        ReplicaError: some differ; the same on all ranks.
    """
    if ranks.world_size == 1:
        return
    with model.gathered() as weights:
        digests_here = _digests(ranks, model, _leaves(state, weights))
    sums = ranks.gather({holding: _joined(digests) for holding, digests in digests_here.items()})
    holdings = {holding: None for rank in sums for holding in rank}
    wrong = [holding for holding in holdings if len({rank[holding] for rank in sums if holding in rank}) > 1]
    if wrong:
        by_rank = ranks.gather({holding: digests_here[holding] for holding in wrong if holding in digests_here})
        raise ReplicaError(_message(step, [text for holding in wrong for text in _differences(holding, by_rank)]))


def announcement(every: int, world_size: int) -> str:
    """Line for a user who asks for comparisons of one process; empty otherwise."""
    if not every or world_size > 1:
        return ""
    return f"train.check_replicas_every={every}: one process has no copies of its weights to compare"


def buffers(model: Parallel) -> dict[str, Tensor]:
    """The buffers of the model by flat name; a state lacks those that are not persistent."""
    return {f"model.{plain_name(name)}": buffer for name, buffer in model.module.named_buffers()}


def _leaves(state: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    # `weights` replace their shards
    leaves = {**dict(flat(state)), **{f"model.{name}": weight for name, weight in weights.items()}}
    return {name: leaf for name, leaf in leaves.items() if not (isinstance(leaf, Tensor) and leaf.is_meta)}


def _digests(ranks: Ranks, model: Parallel, leaves: Mapping[str, Any]) -> Digests:
    # only leaves that other ranks hold too
    tensors: dict[tuple[Holding, str], Tensor] = {}
    digests: Digests = {}
    for name, leaf in leaves.items():
        holding, copies = _holding(model, name, leaf, ranks.world_size)
        if copies < 2:
            continue
        if isinstance(leaf, Tensor):
            local = leaf.detach()
            tensors[holding, name] = local._local_tensor if is_dtensor(local) else local
        else:
            digests.setdefault(holding, {})[name] = _number(repr(leaf))
    for (holding, name), value in zip(tensors, _read(list(tensors.values())), strict=True):
        digests.setdefault(holding, {})[name] = value
    return digests


def _holding(model: Parallel, name: str, leaf: object, world_size: int) -> tuple[Holding, int]:
    """The part that this is, and how many ranks hold a replica of it."""
    stages, count = model.stages(name.removeprefix("model.").removeprefix("optimizer.state."))
    shards: list[tuple[str, int]] = []
    parts = 1
    if is_dtensor(leaf):
        mesh = leaf.device_mesh
        names, place = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim))), mesh.get_coordinate() or ()
        for axis, placement in enumerate(leaf.placements):
            if not placement.is_replicate():
                shards.append((names[axis], place[axis]))
                parts *= mesh.size(axis)
    return (stages, tuple(shards)), world_size * len(stages) // (count * parts)


def _read(tensors: list[Tensor]) -> list[int]:
    # one synchronisation per device
    hashed = [digest(tensor) for tensor in tensors]
    values: list[int] = [0] * len(tensors)
    for device in dict.fromkeys(value.device for value in hashed):
        indices = [index for index, value in enumerate(hashed) if value.device == device]
        for index, number in zip(indices, torch.stack([hashed[i] for i in indices]).tolist(), strict=True):
            values[index] = number
    return values


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _joined(digests: Mapping[str, int]) -> int:
    return _number(repr(sorted(digests.items())))


def _differences(holding: Holding, ranks: list[Digests]) -> Iterator[str]:
    # each name whose replicas differ, with the ranks that differ from the majority
    by_rank = {rank: digests[holding] for rank, digests in enumerate(ranks) if holding in digests}
    for name in dict.fromkeys(name for digests in by_rank.values() for name in digests):
        ranks_of: dict[int | None, list[int]] = {}
        for rank, digests in by_rank.items():
            ranks_of.setdefault(digests.get(name), []).append(rank)
        if len(ranks_of) > 1:
            majority, *minorities = sorted(ranks_of.values(), key=len, reverse=True)
            odd = sorted(rank for group in minorities for rank in group)
            yield f"{name.removeprefix('model.')} ({_ranks(odd)} unlike {_ranks(majority)})"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8:,} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _message(step: int, differences: list[str]) -> str:
    more = f"; and {len(differences) - _SHOWN:,} more" if len(differences) > _SHOWN else ""
    return (
        f"step {step}: copies of the same values differ between ranks: {'; '.join(differences[:_SHOWN])}{more}. "
        "Nothing was saved of this step. A device or a link computes wrongly, or code changes weights outside the "
        "optimizer or draws other random numbers on each rank. Continue from the last checkpoint with the same --out; "
        "train.check_replicas_every=1 finds the first step at which they differ, and with "
        "train.check_replicas_at_save=false checkpoints are written all the same"
    )
