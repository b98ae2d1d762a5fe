"""States of checkpoints that consist of one file for each rank: divided by the model's tensor plan, and joined again.

In such a state, ``ranks`` stands in the place of ``model`` and ``optimizer``: for each tensor-parallel and pipeline
rank ``{"model": {name: tensor}, "optimizer": {name: {kind: tensor}}}``, under the names of the format. The state of a
rank goes through the model's adapter like a whole state, which needs an adapter whose links take shards of tensors as
they take whole ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.adapter import Adapter, matches, to_ours, to_theirs
from recipe_core.checkpoint.lazy import Lazy, lazy, same_bits
from recipe_core.checkpoint.match.mismatch import SHOWN
from recipe_core.checkpoint.ranks.assemble import Assembler
from recipe_core.checkpoint.ranks.cuts import Partition, Shape
from recipe_core.checkpoint.ranks.files import Rank
from recipe_core.checkpoint.ranks.optimizer import by_name
from recipe_core.errors import CheckpointError

RankStates = dict[Rank, dict[str, Any]]
"""For each rank ``model``, and ``optimizer`` by parameter name or ``indexed``, as torch's ``state_dict()`` has it."""


@dataclass(frozen=True)
class Grid:
    """The ranks that a checkpoint is divided over, and how."""

    tp: int = 1
    """Tensor-parallel ranks."""
    pp: int = 1
    """Pipeline stages."""
    vocabulary_multiple: int = 1
    """The vocabulary rows of each tensor-parallel rank are padded with zeros to a multiple of this; 1: not at all."""
    ties: bool = False
    """True if the files hold tied tensors under their second names too."""

    def ranks(self) -> list[Rank]:
        """All of them, the tensor-parallel ranks of a stage one after the other."""
        return [(tensor, stage) for stage in range(self.pp) for tensor in range(self.tp)]


# Dividing


def divided(state: Mapping[str, Any], shape: Shape, adapter: Adapter, grid: Grid) -> dict[str, Any]:
    """Divide a state of whole tensors under our names into the states of ranks, under the format's names.

    Raises:
        CheckpointError: the degrees do not divide the model.
    """
    shape.require_divisible(grid.tp, grid.pp, pads=grid.vocabulary_multiple > 1)
    ranks: RankStates = {rank: {} for rank in grid.ranks()}
    for rank, rank_state in ranks.items():
        names = [name for name in state["model"] if shape.stage(name, grid.pp) == rank[1]]
        model = {name: _shard(state["model"][name], shape.partitions.get(name), rank[0], grid) for name in names}
        rank_state["model"] = _in_order(adapter, to_theirs(adapter, model, ties=False))
        if "optimizer" in state:
            states = state["optimizer"]["state"]
            ours = {name: _state_shards(states[name], shape, name, rank[0], grid) for name in names if name in states}
            rank_state["optimizer"] = _states(adapter, ours, rank_state["model"])
        for second, first in shape.ties.items() if grid.ties else ():
            if shape.stage(second, grid.pp) == rank[1] and first in state["model"]:
                _add_tied(rank_state, second, first, state, shape, rank[0], grid)
    rest = {name: part for name, part in state.items() if name not in ("model", "optimizer")}
    return {**rest, "ranks": ranks}


def _add_tied(
    rank_state: dict[str, Any], second: str, first: str, state: Mapping[str, Any], shape: Shape, rank: int, grid: Grid
) -> None:
    """The second name of a tied tensor. Where a stage does not have the first, it is a parameter of its own."""
    if first in rank_state["model"]:
        rank_state["model"][second] = rank_state["model"][first]
        return
    rank_state["model"][second] = _shard(state["model"][first], shape.partitions.get(first), rank, grid)
    if first in state.get("optimizer", {}).get("state", {}):
        rank_state["optimizer"][second] = _state_shards(state["optimizer"]["state"][first], shape, first, rank, grid)


def padded(rows: int, grid: Grid) -> int:
    """Rows of the vocabulary with padding."""
    unit = grid.vocabulary_multiple * grid.tp
    return -(-rows // unit) * unit if grid.vocabulary_multiple > 1 else rows


def _shard(tensor: Tensor | Lazy, partition: Partition | None, rank: int, grid: Grid) -> Lazy:
    """The shard of a tensor that one tensor-parallel rank holds."""
    whole = lazy(tensor)
    if partition is None:
        return whole
    size = padded(whole.shape[partition.dim], grid) if partition.vocabulary else whole.shape[partition.dim]
    if grid.tp == 1 and size == whole.shape[partition.dim]:
        return whole
    length = size // grid.tp
    shape = torch.Size([*whole.shape[: partition.dim], length, *whole.shape[partition.dim + 1 :]])

    start = min(rank * length, whole.shape[partition.dim])
    count = min(length, whole.shape[partition.dim] - start)

    def read() -> Tensor:
        part = whole.part(start, count) if partition.dim == 0 else whole.read().narrow(partition.dim, start, count)
        if part.shape == shape:
            # So that the whole is freed, where it was read.
            return part if whole.rows and partition.dim == 0 else part.clone(memory_format=torch.contiguous_format)
        full = part.new_zeros(shape)
        full.narrow(partition.dim, 0, part.shape[partition.dim]).copy_(part)
        return full

    return Lazy(shape, whole.dtype, read, whole.together)


def _state_shards(states: Mapping[str, Any], shape: Shape, name: str, rank: int, grid: Grid) -> dict[str, Any]:
    """The optimizer's states of one parameter; those of another shape than the parameter's stay whole."""
    full = shape.tensors[name].shape
    return {
        kind: _shard(value, shape.partitions.get(name), rank, grid)
        if isinstance(value, Tensor | Lazy) and value.shape == full
        else value
        for kind, value in states.items()
    }


def _states(adapter: Adapter, ours: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer states under the format's names, in the order of the model's."""
    linked = {name: link.theirs for link in adapter.links for name in link.ours}
    kinds = dict.fromkeys(kind for states in ours.values() for kind in states)
    renamed: dict[str, Any] = {}
    for kind in kinds:
        have = {name: states[kind] for name, states in ours.items() if kind in states}
        full = {name: value for name, value in have.items() if isinstance(value, Lazy) and value.shape != torch.Size()}
        plain = {other: v for name, v in have.items() if name not in full for other in linked.get(name, (name,))}
        for name, value in {**to_theirs(adapter, full, ties=False), **plain}.items():
            renamed.setdefault(name, {})[kind] = value
    return {name: renamed[name] for name in model if name in renamed}


def _in_order(adapter: Adapter, theirs: dict[str, Lazy]) -> dict[str, Lazy]:
    """In the order of the adapter's links, which is that of the foreign module: optimizers number parameters by it."""
    places = {name: place for place, link in enumerate(adapter.links) for name in link.theirs}
    return dict(sorted(theirs.items(), key=lambda item: places.get(item[0], len(places))))


# Joining


def joined(
    state: Mapping[str, Any], shape: Shape, adapter: Adapter, where: Path, *, pads: bool = False
) -> dict[str, Any]:
    """The inverse of :func:`divided`: a state of whole tensors under our names.

    The dimension along which a tensor is divided, if any, is read off the shapes of its shards: scripts divide other
    layers than the model's plan does. Buffers that the model does not have are left out. The caller compares the names
    with the model's to find what else is missing or left over.

    Args:
        state: as a format opened it.
        shape: what the model is made of.
        adapter: from the format's names to ours.
        where: the checkpoint, for messages.
        pads: the format pads the vocabulary, so that a rank may have as many rows as the model, or more.

    Raises:
        CheckpointError: ranks hold different names, tensors that should agree differ, or shards do not make up the
            model's tensor.
    """
    beside = set(foreign_buffers(state, shape, adapter))
    ranks: RankStates = {
        rank: {**rank_state, "model": {name: t for name, t in rank_state["model"].items() if name not in beside}}
        for rank, rank_state in state["ranks"].items()
    }
    assembler, has_states = Assembler(shape, where, pads), _has_states(ranks, where)
    model: dict[str, Any] = {}
    states: dict[str, dict[str, Any]] = {}
    for stage in sorted({stage for _, stage in ranks}):
        team = [ranks[tensor, stage] for tensor in range(sum(1 for _, other in ranks if other == stage))]
        parts = [to_ours(adapter, _first_names(rank["model"], shape, where), where) for rank in team]
        for name, lazies in _together(parts, stage, where):
            whole = assembler.whole(lazies, name, name)
            model[name] = _same_twice(model[name], whole, name, where) if name in model else whole
        if has_states:
            ours = [_our_states(adapter, _states_of(rank, shape, where), where) for rank in team]
            for name, kinds in _together(ours, stage, where):
                joined_kinds = states.setdefault(name, {})
                for kind, values in _together(kinds, stage, where):
                    label = f"the optimizer's {kind} of {name}"
                    one = assembler.whole(values, name, label)
                    joined_kinds[kind] = (
                        _same_twice(joined_kinds[kind], one, label, where) if kind in joined_kinds else one
                    )
    assembler.require_fitting()
    whole_state = {name: part for name, part in state.items() if name != "ranks"}
    whole_state["model"] = {name: model[name] for name in [*(n for n in shape.tensors if n in model), *model]}
    return {**whole_state, "optimizer": {"state": states}} if states else whole_state


def foreign_buffers(state: Mapping[str, Any], shape: Shape, adapter: Adapter) -> list[str]:
    """Names of tensors that the model does not have, and that are no parameters: those hold fractions.

    A library keeps counted positions or a mask beside the weights in one version, and not in the next.
    """
    known = {*shape.tensors, *shape.ties, *(name for link in adapter.links for name in link.theirs)}
    held: dict[str, list[Any]] = {}
    for rank in state["ranks"].values():
        for name, value in rank["model"].items():
            if (meant := adapter.spelling(name)) not in known and not matches(meant, adapter.ignored):
                held.setdefault(name, []).append(value)
    return [name for name, values in held.items() if all(map(_is_whole_numbers, values))]


def _is_whole_numbers(value: Any) -> bool:
    return isinstance(value, Lazy) and not (value.dtype.is_floating_point or value.dtype.is_complex)


def _has_states(ranks: RankStates, where: Path) -> bool:
    """True if the ranks hold optimizer state.

    Raises:
        CheckpointError: some do, and some do not.
    """
    without = [rank for rank, rank_state in ranks.items() if not {"optimizer", "indexed"} & rank_state.keys()]
    if without and len(without) < len(ranks):
        raise CheckpointError(
            f"{where}: the file of tensor rank {without[0][0]}, pipeline rank {without[0][1]} holds no optimizer, and "
            "others do. Get all files of one checkpoint; its weights alone can be used: train.init_from, or recipe "
            "convert --drop optimizer"
        )
    return not without


def _first_names(theirs: Mapping[str, Any], shape: Shape, where: Path) -> dict[str, Any]:
    """The tensors without the second names of tied ones, which must hold the same."""
    once = dict(theirs)
    for second, first in shape.ties.items():
        if second in once:
            value = once.pop(second)
            if first not in once:
                once[first] = value
            elif not same_bits(once[first].read(), value.read()):
                raise CheckpointError(f"{where}: {second} and {first} differ, and this model has one tensor for both")
    return once


def _states_of(rank: Mapping[str, Any], shape: Shape, where: Path) -> Mapping[str, Mapping[str, Any]]:
    """A rank's optimizer state by name; indexed state counts tied parameters once."""
    if "optimizer" in rank:
        states: Mapping[str, Mapping[str, Any]] = rank["optimizer"]
        return states
    model = rank["model"]
    once = {name: tensor for name, tensor in model.items() if shape.ties.get(name) not in model}
    states = by_name(rank["indexed"], once, where)
    return {shape.ties.get(name, name): kinds for name, kinds in states.items()}


def _our_states(adapter: Adapter, theirs: Mapping[str, Mapping[str, Any]], where: Path) -> dict[str, dict[str, Any]]:
    linked = {name: link.ours for link in adapter.links for name in link.theirs}
    ours: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kind for states in theirs.values() for kind in states):
        have = {name: states[kind] for name, states in theirs.items() if kind in states}
        full = {name: value for name, value in have.items() if isinstance(value, Lazy) and value.shape != torch.Size()}
        firsts = {
            adapter.ties.get(meant := adapter.spelling(name), meant): v for name, v in have.items() if name not in full
        }
        plain = {ours: value for name, value in firsts.items() for ours in linked.get(name, (name,))}
        for name, value in {**to_ours(adapter, full, where), **plain}.items():
            ours.setdefault(name, {})[kind] = value
    return ours


def _together(parts: Sequence[Mapping[str, Any]], stage: int, where: Path) -> Iterator[tuple[str, list[Any]]]:
    """The same entry of all tensor-parallel ranks of a stage."""
    for rank, part in enumerate(parts):
        if part.keys() != parts[0].keys():
            lacks, has = [n for n in parts[0] if n not in part], [n for n in part if n not in parts[0]]
            more = f" and {len(lacks) + len(has) - SHOWN:,} more" if len(lacks) + len(has) > SHOWN else ""
            raise CheckpointError(
                f"{where}: the files of one checkpoint hold the same names, and that of tensor rank {rank} (pipeline "
                f"rank {stage}) differs from that of rank 0: {', '.join([*lacks, *has][:SHOWN])}{more}. Get all files "
                "of one step"
            )
    yield from ((name, [part[name] for part in parts]) for name in parts[0])


def _same_twice(one: Any, two: Any, label: str, where: Path) -> Any:
    """A tensor that two pipeline stages hold, such as a tied embedding, or a state of it."""
    other = f"{where}: {label} has other values in the files of two pipeline stages"
    if not (isinstance(one, Lazy) and isinstance(two, Lazy)):
        if isinstance(one, Lazy) or isinstance(two, Lazy) or one != two:
            raise CheckpointError(other)
        return one

    def read() -> Tensor:
        if one.dtype != two.dtype or one.shape != two.shape or one.digest() != two.digest():
            raise CheckpointError(other)
        return one.read()

    return Lazy(one.shape, one.dtype, read)
