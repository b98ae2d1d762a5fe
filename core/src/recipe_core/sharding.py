"""States of checkpoints that consist of one file for each rank: divided by the model's tensor plan, and joined again.

In such a state, ``ranks`` stands in the place of ``model`` and ``optimizer``: for each tensor-parallel and pipeline
rank ``{"model": {name: tensor}, "optimizer": {name: {kind: tensor}}}``, under the names of the format. What a rank
holds goes through the model's adapter like a whole state, which needs an adapter whose links take parts of tensors as
they take whole ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.cuts import Cut, Shape
from recipe_core.errors import CheckpointError
from recipe_core.lazy import Lazy, lazy, same_bits
from recipe_core.mismatch import SHOWN
from recipe_core.naming import Adapter, to_ours, to_theirs
from recipe_core.numbered import by_name

Rank = tuple[int, int]
"""Tensor-parallel rank, pipeline rank."""
_ROWS = 1 << 24
"""Bytes of a part that are in memory at once while it is joined to others, where it can be read in rows."""
Ranks = dict[Rank, dict[str, Any]]
"""What each holds: ``model``, and ``optimizer`` by name, or ``numbered``, as PyTorch's ``state_dict()`` has it."""


@dataclass(frozen=True)
class Grid:
    """Into how many files a checkpoint is divided, and how."""

    tp: int = 1
    """Tensor-parallel ranks."""
    pp: int = 1
    """Pipeline stages."""
    vocabulary_multiple: int = 1
    """What the rows of the vocabulary are padded to with zeros, for each tensor-parallel rank; 1: not at all."""
    ties: bool = False
    """Whether second names of tied tensors stand in the files too."""

    def ranks(self) -> list[Rank]:
        """All of them, the tensor-parallel ranks of a stage one after the other."""
        return [(tensor, stage) for stage in range(self.pp) for tensor in range(self.tp)]


# Dividing


def divided(state: Mapping[str, Any], shape: Shape, adapter: Adapter, grid: Grid) -> dict[str, Any]:
    """A state of whole tensors under our names as what each rank holds, under the format's.

    Raises:
        CheckpointError: the degrees do not divide the model.
    """
    shape.require_divisible(grid.tp, grid.pp, pads=grid.vocabulary_multiple > 1)
    ranks: Ranks = {rank: {} for rank in grid.ranks()}
    for rank, found in ranks.items():
        names = [name for name in state["model"] if shape.stage(name, grid.pp) == rank[1]]
        model = {name: _piece(state["model"][name], shape.cuts.get(name), rank[0], grid) for name in names}
        found["model"] = _in_order(adapter, to_theirs(adapter, model, ties=False))
        if "optimizer" in state:
            states = state["optimizer"]["state"]
            ours = {name: _pieces(states[name], shape, name, rank[0], grid) for name in names if name in states}
            found["optimizer"] = _states(adapter, ours, found["model"])
        for second, first in shape.ties.items() if grid.ties else ():
            if shape.stage(second, grid.pp) == rank[1] and first in state["model"]:
                _add_tied(found, second, first, state, shape, rank[0], grid)
    rest = {name: part for name, part in state.items() if name not in ("model", "optimizer")}
    return {**rest, "ranks": ranks}


def _add_tied(
    found: dict[str, Any], second: str, first: str, state: Mapping[str, Any], shape: Shape, rank: int, grid: Grid
) -> None:
    """The second name of a tied tensor. Where a stage does not have the first, it is a parameter of its own."""
    if first in found["model"]:
        found["model"][second] = found["model"][first]
        return
    found["model"][second] = _piece(state["model"][first], shape.cuts.get(first), rank, grid)
    if first in state.get("optimizer", {}).get("state", {}):
        found["optimizer"][second] = _pieces(state["optimizer"]["state"][first], shape, first, rank, grid)


def padded(rows: int, grid: Grid) -> int:
    """Rows of the vocabulary with padding."""
    unit = grid.vocabulary_multiple * grid.tp
    return -(-rows // unit) * unit if grid.vocabulary_multiple > 1 else rows


def _piece(tensor: Tensor | Lazy, cut: Cut | None, rank: int, grid: Grid) -> Lazy:
    """What one tensor-parallel rank holds of a tensor."""
    whole = lazy(tensor)
    if cut is None:
        return whole
    size = padded(whole.shape[cut.dim], grid) if cut.vocabulary else whole.shape[cut.dim]
    if grid.tp == 1 and size == whole.shape[cut.dim]:
        return whole
    length = size // grid.tp
    shape = torch.Size([*whole.shape[: cut.dim], length, *whole.shape[cut.dim + 1 :]])

    start = min(rank * length, whole.shape[cut.dim])
    count = min(length, whole.shape[cut.dim] - start)

    def read() -> Tensor:
        part = whole.part(start, count) if cut.dim == 0 else whole.read().narrow(cut.dim, start, count)
        if part.shape == shape:
            # So that the whole is freed, where it was read.
            return part if whole.rows and cut.dim == 0 else part.clone(memory_format=torch.contiguous_format)
        full = part.new_zeros(shape)
        full.narrow(cut.dim, 0, part.shape[cut.dim]).copy_(part)
        return full

    return Lazy(shape, whole.dtype, read, whole.together)


def _pieces(states: Mapping[str, Any], shape: Shape, name: str, rank: int, grid: Grid) -> dict[str, Any]:
    """The optimizer's states of one parameter; those of another shape than the parameter's are not cut."""
    full = shape.tensors[name].shape
    return {
        kind: _piece(value, shape.cuts.get(name), rank, grid) if getattr(value, "shape", None) == full else value
        for kind, value in states.items()
    }


def _states(adapter: Adapter, ours: Mapping[str, Mapping[str, Any]], model: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer states under the format's names, in the order of the model's."""
    linked = {name: link.theirs for link in adapter.links for name in link.ours}
    kinds = dict.fromkeys(kind for states in ours.values() for kind in states)
    found: dict[str, Any] = {}
    for kind in kinds:
        have = {name: states[kind] for name, states in ours.items() if kind in states}
        full = {name: value for name, value in have.items() if isinstance(value, Lazy) and value.shape != torch.Size()}
        plain = {other: v for name, v in have.items() if name not in full for other in linked.get(name, (name,))}
        for name, value in {**to_theirs(adapter, full, ties=False), **plain}.items():
            found.setdefault(name, {})[kind] = value
    return {name: found[name] for name in model if name in found}


def _in_order(adapter: Adapter, theirs: dict[str, Lazy]) -> dict[str, Lazy]:
    """In the order of the adapter's links, which is that of the foreign module: optimizers number parameters by it."""
    places = {name: place for place, link in enumerate(adapter.links) for name in link.theirs}
    return dict(sorted(theirs.items(), key=lambda item: places.get(item[0], len(places))))


# Joining


def joined(state: Mapping[str, Any], shape: Shape, adapter: Adapter, where: Path) -> dict[str, Any]:
    """The way back: a state of whole tensors under our names.

    What is missing or left over is for the caller to find out by the names of the model.

    Raises:
        CheckpointError: ranks hold different names, tensors that should agree differ, or they are the parts of
            another number of ranks.
    """
    ranks: Ranks = state["ranks"]
    stages = sorted({stage for _, stage in ranks})
    sizes = [sum(1 for _, other in ranks if other == stage) for stage in stages]
    model: dict[str, Any] = {}
    states: dict[str, dict[str, Any]] = {}
    for stage, size in zip(stages, sizes, strict=True):
        parts = [
            to_ours(adapter, _first_names(ranks[tensor, stage]["model"], shape, where), where) for tensor in range(size)
        ]
        for name, lazies in _together(parts, stage, where):
            whole = _whole(lazies, shape, name, where)
            model[name] = _same_twice(model[name], whole, name, where) if name in model else whole
        if all({"optimizer", "numbered"} & ranks[tensor, stage].keys() for tensor in range(size)):
            ours = [
                _our_states(adapter, _states_of(ranks[tensor, stage], shape, where), where) for tensor in range(size)
            ]
            for name, kinds in _together(ours, stage, where):
                states.setdefault(name, {})
                for kind, values in _together(kinds, stage, where):
                    one = _whole(values, shape, name, where) if isinstance(values[0], Lazy) else values[0]
                    states[name].setdefault(kind, one)
    found = {name: part for name, part in state.items() if name != "ranks"}
    found["model"] = {name: model[name] for name in [*(n for n in shape.tensors if n in model), *model]}
    return {**found, "optimizer": {"state": states}} if states else found


def _first_names(theirs: Mapping[str, Any], shape: Shape, where: Path) -> dict[str, Any]:
    """Without the second names of tied tensors, which must hold the same."""
    found = dict(theirs)
    for second, first in shape.ties.items():
        if second in found:
            value = found.pop(second)
            if first not in found:
                found[first] = value
            elif not same_bits(found[first].read(), value.read()):
                raise CheckpointError(f"{where}: {second} and {first} differ, and this model has one tensor for both")
    return found


def _states_of(rank: Mapping[str, Any], shape: Shape, where: Path) -> Mapping[str, Mapping[str, Any]]:
    """A rank's optimizer states by name; what a file has by number counts tied parameters once."""
    if "optimizer" in rank:
        states: Mapping[str, Mapping[str, Any]] = rank["optimizer"]
        return states
    model = rank["model"]
    once = {name: tensor for name, tensor in model.items() if shape.ties.get(name) not in model}
    states = by_name(rank["numbered"], once, where)
    return {shape.ties.get(name, name): kinds for name, kinds in states.items()}


def _our_states(adapter: Adapter, theirs: Mapping[str, Mapping[str, Any]], where: Path) -> dict[str, dict[str, Any]]:
    linked = {name: link.ours for link in adapter.links for name in link.theirs}
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kind for states in theirs.values() for kind in states):
        have = {name: states[kind] for name, states in theirs.items() if kind in states}
        full = {name: value for name, value in have.items() if isinstance(value, Lazy) and value.shape != torch.Size()}
        firsts = {
            adapter.ties.get(meant := adapter.spelling(name), meant): v for name, v in have.items() if name not in full
        }
        plain = {ours: value for name, value in firsts.items() for ours in linked.get(name, (name,))}
        for name, value in {**to_ours(adapter, full, where), **plain}.items():
            found.setdefault(name, {})[kind] = value
    return found


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


def _whole(parts: Sequence[Lazy], shape: Shape, name: str, where: Path) -> Lazy:
    """One tensor from what the tensor-parallel ranks hold of it."""
    cut, first = shape.cuts.get(name), parts[0]
    if any(part.dtype != first.dtype for part in parts):
        raise CheckpointError(f"{where}: {name} has several types of values in the files of several ranks")
    if cut is None or len(first.shape) <= cut.dim:
        return first if len(parts) == 1 else Lazy(first.shape, first.dtype, partial(_equal, parts, name, where))
    size = sum(part.shape[cut.dim] for part in parts)
    expected = shape.tensors[name].shape[cut.dim] if name in shape.tensors else size
    if size < expected and expected % size == 0:
        ranks = len(parts) * (expected // size)
        raise CheckpointError(
            f"{where}: {name} has {size:,} instead of {expected:,} along dimension {cut.dim} in the files of "
            f"{len(parts)} tensor-parallel rank(s): these are parts of {ranks}, so files are missing or wrongly named"
        )
    if not cut.vocabulary or size < expected:
        expected = size
    full = torch.Size([*first.shape[: cut.dim], expected, *first.shape[cut.dim + 1 :]])
    if len(parts) == 1 and first.shape == full:
        return first
    return Lazy(full, first.dtype, partial(concatenated, parts, full, cut.dim))


def concatenated(parts: Sequence[Lazy], shape: torch.Size, dim: int) -> Tensor:
    """The parts along ``dim``, without padding at the end; a few rows of one of them are in memory beside it."""
    whole = torch.empty(shape, dtype=parts[0].dtype)
    start = 0
    for part in parts:
        length = max(0, min(part.shape[dim], shape[dim] - start))
        if dim == 0 and part.rows:
            step = max(1, _ROWS * part.shape[0] // max(1, part.nbytes))
            for row in range(0, length, step):
                count = min(step, length - row)
                whole.narrow(0, start + row, count).copy_(part.part(row, count))
        elif length:
            whole.narrow(dim, start, length).copy_(part.read().narrow(dim, 0, length))
        start += part.shape[dim]
    return whole


def _equal(parts: Sequence[Lazy], name: str, where: Path) -> Tensor:
    """What all ranks hold alike."""
    first = parts[0].read()
    for rank, part in enumerate(parts[1:], 1):
        if not same_bits(first, part.read()):
            raise CheckpointError(
                f"{where}: {name} is the same on all tensor-parallel ranks, and the files of ranks 0 and {rank} have "
                "other values of it: they are of two steps, or of two runs"
            )
    return first


def _same_twice(one: Lazy, two: Lazy, name: str, where: Path) -> Lazy:
    """A tensor that two pipeline stages hold, such as a tied embedding."""

    def read() -> Tensor:
        if one.dtype != two.dtype or one.digest() != two.digest():
            raise CheckpointError(f"{where}: {name} has other values in the files of two pipeline stages")
        return one.read()

    return Lazy(one.shape, one.dtype, read)
