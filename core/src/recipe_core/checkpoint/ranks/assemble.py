"""Join the shards of tensor-parallel ranks into whole tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recipe_core.checkpoint.lazy import Lazy, same_bits
from recipe_core.checkpoint.match.mismatch import SHOWN
from recipe_core.checkpoint.ranks.cuts import Shape
from recipe_core.errors import CheckpointError

_ROWS = 1 << 24
"""Bytes of a shard that are read at a time while shards are joined, if it can be read in rows."""


@dataclass
class Assembler:
    """Joins the shards of a checkpoint's ranks into whole tensors."""

    shape: Shape
    where: Path
    pads: bool
    misfits: list[str] = field(default_factory=list)

    def whole(self, parts: Sequence[Any], name: str, label: str) -> Any:
        """Join the tensor-parallel shards of the tensor ``name``, or of one of its optimizer states, into one value."""
        first = parts[0]
        if not isinstance(first, Lazy):
            if any(part != first for part in parts):
                raise CheckpointError(f"{self.where}: {label} differs between tensor-parallel ranks: {parts[:SHOWN]}")
            return first
        if any(part.dtype != first.dtype for part in parts):
            raise CheckpointError(f"{self.where}: {label} has several types of values in the files of several ranks")
        dim = self._divided_along([part.shape for part in parts], name, label)
        if dim is None:
            return (
                first if len(parts) == 1 else Lazy(first.shape, first.dtype, partial(_same, parts, label, self.where))
            )
        size = sum(part.shape[dim] for part in parts)
        if self._is_vocabulary(name, dim):
            size = min(size, self.shape.tensors[name].shape[dim])  # padding comes last
        full = torch.Size([*first.shape[:dim], size, *first.shape[dim + 1 :]])
        return first if first.shape == full else Lazy(full, first.dtype, partial(concatenate, parts, full, dim))

    def require_fitting(self) -> None:
        """Refuse shards that do not make up the model's tensors, all in one message.

        Raises:
            CheckpointError: there are some.
        """
        if self.misfits:
            more = [f"and {len(self.misfits) - SHOWN:,} more"] if len(self.misfits) > SHOWN else []
            lines = "\n".join(f"  - {line}" for line in [*self.misfits[:SHOWN], *more])
            raise CheckpointError(
                f"{self.where}: what its ranks hold does not make up the model's tensors, neither whole on each rank "
                f"nor divided along one dimension:\n{lines}\nGive the right model, or get all files of one checkpoint"
            )

    def _divided_along(self, shapes: Sequence[torch.Size], name: str, label: str) -> int | None:
        """The dimension along which shards of these shapes are joined; None if each is the whole tensor."""
        first = shapes[0]
        if name not in self.shape.tensors or not first:  # unknown, which the caller reports; or a step count
            return None
        full, partition = self.shape.tensors[name].shape, self.shape.partitions.get(name)
        if partition is not None and len(first) > partition.dim:
            _require_all_parts(first[partition.dim], full[partition.dim], len(shapes), partition.dim, label, self.where)
        differing = [dim for dim in range(len(full)) if len(first) == len(full) and first[dim] != full[dim]]
        if all(shape == first for shape in shapes):
            if self.pads and partition is not None and partition.vocabulary and differing in ([], [partition.dim]):
                return partition.dim
            if first == full:
                return None
            if len(differing) == 1 and self._makes_up(first[differing[0]], len(shapes), name, differing[0]):
                return differing[0]
        if len(shapes) > 1:  # of a single rank, the caller reports it
            held = f"{list(first)} each" if len({*shapes}) == 1 else ", ".join(str(list(shape)) for shape in shapes)
            self.misfits.append(
                f"{label}: tensor-parallel ranks 0 to {len(shapes) - 1} hold {held}, and the model has {list(full)}"
            )
        return None

    def _makes_up(self, size: int, ranks: int, name: str, dim: int) -> bool:
        full = self.shape.tensors[name].shape[dim]
        return size * ranks == full or (self._is_vocabulary(name, dim) and size < full < size * ranks)

    def _is_vocabulary(self, name: str, dim: int) -> bool:
        partition = self.shape.partitions.get(name)
        return partition is not None and partition.vocabulary and partition.dim == dim


def _require_all_parts(size: int, full: int, ranks: int, dim: int, label: str, where: Path) -> None:
    if size * ranks < full and full % (size * ranks) == 0:
        raise CheckpointError(
            f"{where}: {label} has {size * ranks:,} instead of {full:,} along dimension {dim} in the files of "
            f"{ranks} tensor-parallel rank(s): these are parts of {full // size}, so files are missing or wrongly named"
        )


def concatenate(parts: Sequence[Lazy], shape: torch.Size, dim: int) -> Tensor:
    """Concatenate shards along ``dim`` and drop padding at the end; besides the result, a few rows are in memory."""
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


def _same(parts: Sequence[Lazy], label: str, where: Path) -> Tensor:
    first = parts[0].read()
    for rank, part in enumerate(parts[1:], 1):
        if not same_bits(first, copy := part.read()):
            raise CheckpointError(
                f"{where}: {label} is the same on all tensor-parallel ranks, and the files of ranks 0 and {rank} have "
                f"other values of it ({_delta(first, copy)}): they are of two steps or of two runs, or the run let "
                "its copies drift apart. Get all files of one step, or take an earlier checkpoint"
            )
    return first


def _delta(a: Tensor, b: Tensor) -> str:
    count = int((a != b).sum())
    most = (a.double() - b.double()).abs().max().item()
    return f"{count:,} of {a.numel():,} differ, by {most:.3g} at most"
