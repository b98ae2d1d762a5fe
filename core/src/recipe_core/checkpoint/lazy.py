"""A state whose tensors are read when they are asked for: what checkpoint formats read and write tensor by tensor.

A state is a nested dict. Its parts are ``model`` (tensors by the names of the module's state dict), ``optimizer``
(``state``, then the parameter's name, then the kind: ``exp_avg``), ``progress`` (plain values), ``epoch`` (a number
that only scripts ask for) and ``files`` (texts that a format keeps beside the tensors: ``config.json``). A leaf is a
tensor, a :class:`Lazy` or a plain value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True, eq=False)
class Lazy:
    """A tensor that is read when it is asked for. Memory is then bounded by the largest tensor, not by the model."""

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[], Tensor]
    """The whole tensor on the CPU; every call reads it anew."""
    together: bool = False
    """It is sharded, and all ranks call ``read`` together."""
    rows: Callable[[int, int], Tensor] | None = None
    """Where it can be read in part: so many entries of the first dimension, from one on."""

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def part(self, start: int, count: int) -> Tensor:
        """Entries of the first dimension, read alone where that is possible."""
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
    """A tensor as one that is read later; a sharded one is then gathered."""
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


def flat(state: Mapping[str, Any], parent: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its place (``"optimizer.state.blocks.0.bias.exp_avg"``); an empty dict is a leaf."""
    for key, value in state.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{parent}{key}.")
        else:
            yield f"{parent}{key}", value


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a nested dict or list with every leaf changed."""
    if isinstance(tree, Mapping):
        return {key: mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return type(tree)(mapped(value, change) for value in tree)
    return change(tree)


def held(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Of a nested dict, what this process holds: all but the meta tensors, which stand for what others hold."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            if not (isinstance(value, Tensor) and value.is_meta):
                found[key] = value
        elif (inner := held(value)) or not value:
            found[key] = inner
    return found


@torch.no_grad()
def fill(target: Tensor, value: Tensor | Lazy) -> None:
    """Copy ``value`` into ``target``, which may be sharded: each rank takes its part of it, and no rank talks.

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
    """Whether shape, type and every bit agree; NaNs and the sign of zero count."""
    if one.dtype != two.dtype or one.shape != two.shape:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, two)))
