"""States with lazy tensors, which checkpoint formats read and write one by one.

A state is a nested dict. Its parts are ``model`` (tensors by the names of the module's state dict), ``optimizer``
(``state``, then the parameter's name, then the kind: ``exp_avg``), ``progress`` (plain values), ``epoch`` (a number
that only scripts ask for) and ``files`` (texts that a format keeps beside the tensors: ``config.json``). A leaf is a
tensor, a :class:`Lazy` or a plain value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True, eq=False)
class Lazy:
    """A tensor that is read on demand. Memory is bounded by the largest tensor, not by the model."""

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[], Tensor]
    """The whole tensor on the CPU; every call reads it anew."""
    together: bool = False
    """True if it is sharded, so that all ranks must call ``read`` together."""
    rows: Callable[[int, int], Tensor] | None = None
    """Reads rows ``(start, count)`` of the first dimension alone, if that is possible."""

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, start: int, count: int) -> Tensor:
        """Rows of the first dimension, read alone if that is possible."""
        return self.rows(start, count) if self.rows else self.read().narrow(0, start, count)

    def digest(self) -> bytes:
        """SHA-256 of the values; they are not kept."""
        values = self.read().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.sha256(values.numpy().data).digest()


Offsets = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pieces(Lazy):
    """A tensor in parts; a format that can, writes them one by one, and others read the whole."""

    parts: tuple[tuple[Offsets, Tensor], ...] = ()
    """Where each begins in the whole, and its values."""


def lazy(value: Tensor | Lazy) -> Lazy:
    """Wrap a tensor as a lazy one; a sharded tensor is gathered when it is read."""
    if isinstance(value, Lazy):
        return value

    def read() -> Tensor:
        whole = hosted(value).full_tensor() if isinstance(value, DTensor) else value
        return whole.detach().cpu()

    return Lazy(value.shape, value.dtype, read, isinstance(value, DTensor))


def hosted(shard: DTensor, *, blank: bool = False) -> DTensor:
    """``shard`` where the ranks of its mesh can exchange it.

    That is ``shard`` itself or, where it lies on a device that the mesh does not reach (PyTorch/XLA's, under a mesh of
    the host), a copy on the host, or (``blank``) room for it.
    """
    local = shard._local_tensor  # to_local() gives a view, which XLA would compile a graph for
    if local.device.type == shard.device_mesh.device_type:
        return shard
    held = torch.empty(local.shape, dtype=local.dtype) if blank else local.detach().to("cpu", copy=True)
    return DTensor.from_local(
        held, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )


def leaves(tree: Any) -> list[Any]:
    """All leaves of a nested dict or list."""
    every: list[Any] = []
    mapped(tree, every.append)
    return every


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a nested dict or list with every leaf changed."""
    if isinstance(tree, Mapping):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return type(tree)(mapped(value, change) for value in tree)
    return change(tree)


def without_meta(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A nested dict without its meta tensors, which stand for tensors that other processes hold."""
    local: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            if not (isinstance(value, Tensor) and value.is_meta):
                local[key] = value
        elif (inner := without_meta(value)) or not value:
            local[key] = inner
    return local


@torch.no_grad()
def fill(target: Tensor, value: Tensor | Lazy) -> None:
    """Copy ``value`` into ``target``, which may be sharded: each rank copies its shard; no communication.

    A meta tensor, which stands for one that another process holds, stays as it is.
    """
    if target.is_meta:
        return
    whole = value.read() if isinstance(value, Lazy) else value
    if not isinstance(target, DTensor):
        target.copy_(whole)
        return
    shape, offset = compute_local_shape_and_global_offset(target.shape, target.device_mesh, target.placements)
    for dim, (start, length) in enumerate(zip(offset, shape, strict=True)):
        whole = whole.narrow(dim, min(start, whole.shape[dim]), length)
    target.to_local().copy_(whole)


def same_bits(one: Tensor, two: Tensor) -> bool:
    """True if shape, dtype and every bit agree; NaNs and the sign of zero count."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, two)))
