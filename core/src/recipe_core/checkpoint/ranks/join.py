"""Split a state across ranks by the model's tensor plan, and join the states of ranks into one.

Such a state has ``ranks`` instead of ``model`` and ``optimizer``: for each tensor-parallel and pipeline rank
``{"model": {name: tensor}, "optimizer": {name: {kind: tensor}}}``, under the names of the format. The model's adapter
converts the state of a rank like a whole state, so its links must accept shards as well as whole tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.adapter import Adapter, matches, to_foreign, to_native
from recipe_core.checkpoint.lazy import Lazy, lazy, same_bits, same_values
from recipe_core.checkpoint.match.mismatch import SHOWN
from recipe_core.checkpoint.ranks.assemble import Assembler
from recipe_core.checkpoint.ranks.cuts import Partition, Shape
from recipe_core.checkpoint.ranks.files import Grid, Rank, padded_rows
from recipe_core.checkpoint.ranks.optimizer import by_name
from recipe_core.errors import CheckpointError

RankStates = dict[Rank, dict[str, Any]]
"""For each rank ``model``, and ``optimizer`` by parameter name or ``indexed``, as torch's ``state_dict()`` has it."""


# Split


def split_by_rank(state: Mapping[str, Any], shape: Shape, adapter: Adapter, grid: Grid) -> dict[str, Any]:
    """Split a state of whole tensors under native names into the states of ranks, under the format's names.

    Raises:
        CheckpointError: the degrees do not divide the model's sizes.
    """
    shape.require_divisible(grid.tp, grid.pp, pads=grid.vocabulary_multiple > 1)
    ranks: RankStates = {rank: {} for rank in grid.ranks()}
    for rank, rank_state in ranks.items():
        names = [name for name in state["model"] if shape.stage(name, grid.pp) == rank[1]]
        model = {name: _shard(state["model"][name], shape.partitions.get(name), rank[0], grid) for name in names}
        rank_state["model"] = _in_order(adapter, to_foreign(adapter, model, ties=False))
        if "optimizer" in state:
            states = state["optimizer"]["state"]
            native = {name: _state_shards(states[name], shape, name, rank[0], grid) for name in names if name in states}
            rank_state["optimizer"] = _foreign_states(adapter, native, rank_state["model"])
        for second, first in shape.ties.items() if grid.ties else ():
            if shape.stage(second, grid.pp) == rank[1] and first in state["model"]:
                _add_tied(rank_state, second, first, state, shape, rank[0], grid)
    rest = {name: part for name, part in state.items() if name not in ("model", "optimizer")}
    return {**rest, "ranks": ranks}


def _add_tied(
    rank_state: dict[str, Any], second: str, first: str, state: Mapping[str, Any], shape: Shape, rank: int, grid: Grid
) -> None:
    # A stage that does not hold the first name has a parameter of its own.
    if first in rank_state["model"]:
        rank_state["model"][second] = rank_state["model"][first]
        return
    rank_state["model"][second] = _shard(state["model"][first], shape.partitions.get(first), rank, grid)
    if first in state.get("optimizer", {}).get("state", {}):
        rank_state["optimizer"][second] = _state_shards(state["optimizer"]["state"][first], shape, first, rank, grid)


def _shard(tensor: Tensor | Lazy, partition: Partition | None, rank: int, grid: Grid) -> Lazy:
    whole = lazy(tensor)
    if partition is None:
        return whole
    dim, rows = partition.dim, whole.shape[partition.dim]
    size = padded_rows(rows, grid) if partition.vocabulary else rows
    if grid.tp == 1 and size == rows:
        return whole
    length = size // grid.tp
    shape = torch.Size([*whole.shape[:dim], length, *whole.shape[dim + 1 :]])
    start = min(rank * length, rows)
    offsets = tuple(start if axis == dim else 0 for axis in range(len(shape)))
    sizes = tuple(min(length, rows - start) if axis == dim else size for axis, size in enumerate(shape))

    def read() -> Tensor:
        part = whole.slice(offsets, sizes)
        if part.shape == shape:
            # Clone a view, so that what else was read is freed.
            is_view = part.untyped_storage().nbytes() > part.nbytes or not part.is_contiguous()
            return part.clone(memory_format=torch.contiguous_format) if is_view else part
        full = part.new_zeros(shape)
        full.narrow(dim, 0, part.shape[dim]).copy_(part)
        return full

    return Lazy(shape, whole.dtype, read, whole.together)


def _state_shards(states: Mapping[str, Any], shape: Shape, name: str, rank: int, grid: Grid) -> dict[str, Any]:
    """Optimizer states of one parameter; states of another shape than the parameter stay whole."""
    full = shape.tensors[name].shape
    return {
        kind: _shard(value, shape.partitions.get(name), rank, grid)
        if isinstance(value, Tensor | Lazy) and value.shape == full
        else value
        for kind, value in states.items()
    }


def _foreign_states(
    adapter: Adapter, native: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any]
) -> dict[str, Any]:
    linked = {name: link.theirs for link in adapter.links for name in link.ours}
    kinds = dict.fromkeys(kind for states in native.values() for kind in states)
    renamed: dict[str, Any] = {}
    for kind in kinds:
        values = {name: states[kind] for name, states in native.items() if kind in states}
        full = {
            name: value for name, value in values.items() if isinstance(value, Lazy) and value.shape != torch.Size()
        }
        plain = {target: v for name, v in values.items() if name not in full for target in linked.get(name, (name,))}
        for name, value in {**to_foreign(adapter, full, ties=False), **plain}.items():
            renamed.setdefault(name, {})[kind] = value
    return {name: renamed[name] for name in model if name in renamed}


def _in_order(adapter: Adapter, foreign: dict[str, Lazy]) -> dict[str, Lazy]:
    """Sort by the adapter's links, the order of the foreign module: optimizers number parameters by it."""
    places = {name: place for place, link in enumerate(adapter.links) for name in link.theirs}
    return dict(sorted(foreign.items(), key=lambda item: places.get(item[0], len(places))))


# Join


def join_ranks(
    state: Mapping[str, Any], shape: Shape, adapter: Adapter, where: Path, *, pads: bool = False
) -> dict[str, Any]:
    """Inverse of :func:`split_by_rank`: a state of whole tensors under native names.

    The dimension along which a tensor is sharded is inferred from the shapes of its shards, since scripts may shard
    other layers than the model's plan. Buffers that the model does not have are dropped. The caller compares the names
    with the model's to find other missing or unknown entries.

    Args:
        state: as a format opened it.
        shape: tensors and partitions of the model.
        adapter: between native names and those of the format.
        where: the checkpoint, for messages.
        pads: the format pads the vocabulary, so that a rank may have as many rows as the model, or more.

    Raises:
        CheckpointError: ranks hold different names, tensors that should agree differ, or shards do not make up the
            model's tensor.
    """
    extra_buffers = set(foreign_buffers(state, shape, adapter))
    ranks: RankStates = {
        rank: {**rank_state, "model": {name: t for name, t in rank_state["model"].items() if name not in extra_buffers}}
        for rank, rank_state in state["ranks"].items()
    }
    assembler, has_states = Assembler(shape, where, pads), _has_states(ranks, where)
    model: dict[str, Any] = {}
    states: dict[str, dict[str, Any]] = {}
    for stage in sorted({stage for _, stage in ranks}):
        tp_ranks = [ranks[tensor, stage] for tensor in range(sum(1 for _, other in ranks if other == stage))]
        parts = [to_native(adapter, _first_names(rank["model"], shape, where), where) for rank in tp_ranks]
        for name, lazies in _zip_ranks(parts, stage, where):
            whole = assembler.whole(lazies, name, name)
            model[name] = _require_equal(model[name], whole, name, where) if name in model else whole
        if has_states:
            native = [_native_states(adapter, _states_of(rank, shape, where), where) for rank in tp_ranks]
            for name, kinds in _zip_ranks(native, stage, where):
                joined_kinds = states.setdefault(name, {})
                for kind, values in _zip_ranks(kinds, stage, where):
                    label = f"the optimizer's {kind} of {name}"
                    joined = assembler.whole(values, name, label)
                    joined_kinds[kind] = (
                        _require_equal(joined_kinds[kind], joined, label, where) if kind in joined_kinds else joined
                    )
    assembler.require_fitting()
    whole_state = {name: part for name, part in state.items() if name != "ranks"}
    whole_state["model"] = {name: model[name] for name in [*(n for n in shape.tensors if n in model), *model]}
    return {**whole_state, "optimizer": {"state": states}} if states else whole_state


def foreign_buffers(state: Mapping[str, Any], shape: Shape, adapter: Adapter) -> list[str]:
    """Names of integer tensors that the model does not have; parameters are floating-point.

    Some versions of a library store position ids or a mask with the weights, others do not.
    """
    known = {*shape.tensors, *shape.ties, *(name for link in adapter.links for name in link.theirs)}
    unknown: dict[str, list[Any]] = {}
    for rank in state["ranks"].values():
        for name, value in rank["model"].items():
            if (canonical := adapter.spelling(name)) not in known and not matches(canonical, adapter.ignored):
                unknown.setdefault(name, []).append(value)
    return [name for name, values in unknown.items() if all(map(_is_integer, values))]


def _is_integer(value: Any) -> bool:
    return isinstance(value, Lazy) and not (value.dtype.is_floating_point or value.dtype.is_complex)


def _has_states(ranks: RankStates, where: Path) -> bool:
    without = [rank for rank, rank_state in ranks.items() if not {"optimizer", "indexed"} & rank_state.keys()]
    if without and len(without) < len(ranks):
        raise CheckpointError(
            f"{where}: the file of tensor rank {without[0][0]}, pipeline rank {without[0][1]} holds no optimizer, and "
            "others do. Get all files of one checkpoint; its weights alone can be used: train.init_from, or recipe "
            "convert --drop optimizer"
        )
    return not without


def _first_names(foreign: Mapping[str, Any], shape: Shape, where: Path) -> dict[str, Any]:
    """Drop the second names of tied tensors, which must have equal values."""
    untied = dict(foreign)
    for second, first in shape.ties.items():
        if second in untied:
            value = untied.pop(second)
            if first not in untied:
                untied[first] = value
            elif not same_bits(untied[first].read(), value.read()):
                raise CheckpointError(f"{where}: {second} and {first} differ, and this model has one tensor for both")
    return untied


def _states_of(rank: Mapping[str, Any], shape: Shape, where: Path) -> Mapping[str, Mapping[str, Any]]:
    """Optimizer state of a rank by name; indexed state counts tied parameters once."""
    if "optimizer" in rank:
        states: Mapping[str, Mapping[str, Any]] = rank["optimizer"]
        return states
    model = rank["model"]
    untied = {name: tensor for name, tensor in model.items() if shape.ties.get(name) not in model}
    states = by_name(rank["indexed"], untied, where)
    return {shape.ties.get(name, name): kinds for name, kinds in states.items()}


def _native_states(
    adapter: Adapter, foreign: Mapping[str, Mapping[str, Any]], where: Path
) -> dict[str, dict[str, Any]]:
    linked = {name: link.ours for link in adapter.links for name in link.theirs}
    native: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kind for states in foreign.values() for kind in states):
        values = {name: states[kind] for name, states in foreign.items() if kind in states}
        full = {
            name: value for name, value in values.items() if isinstance(value, Lazy) and value.shape != torch.Size()
        }
        firsts = {
            adapter.ties.get(canonical := adapter.spelling(name), canonical): v
            for name, v in values.items()
            if name not in full
        }
        plain = {target: value for name, value in firsts.items() for target in linked.get(name, (name,))}
        for name, value in {**to_native(adapter, full, where), **plain}.items():
            native.setdefault(name, {})[kind] = value
    return native


def _zip_ranks(parts: Sequence[Mapping[str, Any]], stage: int, where: Path) -> Iterator[tuple[str, list[Any]]]:
    """Yield each name with its values on all tensor-parallel ranks of a stage."""
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


def _require_equal(a: Any, b: Any, label: str, where: Path) -> Any:
    """Return a value that two pipeline stages hold, such as a tied embedding, checked for equality when it is read."""
    message = f"{where}: {label} has other values in the files of two pipeline stages"
    if not (isinstance(a, Lazy) and isinstance(b, Lazy)):
        if isinstance(a, Lazy) or isinstance(b, Lazy) or a != b:
            raise CheckpointError(message)
        return a

    def read() -> Tensor:
        if not same_values(a, b):
            raise CheckpointError(message)
        return a.read()

    return Lazy(a.shape, a.dtype, read)
