"""States with lazy tensors, which checkpoint formats read and write one at a time.

A state is a nested dict. Its parts are ``model`` (tensors by the names of the module's state dict), ``optimizer``
(``state``, then the parameter's name, then the kind: ``exp_avg``), ``progress`` (plain values), ``epoch`` (a number
that only scripts need) and ``files`` (texts that a format stores with the tensors, such as ``config.json``). A leaf is
a tensor, a :class:`Lazy` or a plain value.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recipe_core.engine.dtensor import is_dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Offsets = tuple[int, ...]
"""Begin of a slice in each dimension."""
Sizes = tuple[int, ...]
"""Length of a slice in each dimension."""
_BLOCK = 1 << 19
"""Bytes per block in comparisons. malloc reuses memory for them; large allocations get new pages each time."""


def narrow(tensor: Tensor, offsets: Offsets, sizes: Sizes) -> Tensor:
    """Return a slice of ``tensor`` as a view."""
    for dim, (start, length) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, start, length)
    return tensor


@dataclass(frozen=True, eq=False)
class Lazy:
    """A tensor that is read on demand. Memory is bounded by the largest tensor, not by the model."""

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[], Tensor]
    """Returns the whole tensor on the CPU; every call reads it again."""
    together: bool = False
    """True if it is sharded: ``read`` is then a collective."""
    rows: Callable[[int, int], Tensor] | None = None
    """Reads only rows ``(start, count)`` of the first dimension; None where that is not possible."""
    slices: Callable[[Offsets, Sizes], Tensor] | None = None
    """Reads only the values of :meth:`slice`; None where that is not possible."""

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def sliceable(self) -> bool:
        """True if rows can be read without the others."""
        return bool(self.shape and (self.slices or self.rows))

    def part(self, start: int, count: int) -> Tensor:
        """Return rows of the first dimension, without reading the others if possible."""
        rest = self.shape[1:]
        return self.slice((start, *(0 for _ in rest)), (count, *rest))

    def slice(self, offsets: Offsets, sizes: Sizes) -> Tensor:
        """Return the values from ``offsets``, as many as ``sizes`` in each dimension, without reading the others if
        possible."""
        if self.slices:
            return self.slices(offsets, sizes)
        if self.rows:
            return narrow(self.rows(offsets[0], sizes[0]), (0, *offsets[1:]), sizes)
        return narrow(self.read(), offsets, sizes)

    def digest(self) -> bytes:
        """Return the SHA-256 of the values."""
        values = self.read().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.sha256(values.numpy().data).digest()


@dataclass(frozen=True, eq=False)
class ShardedTensorView(Lazy):
    """A tensor as a set of shards: formats with support for shards write them separately, others read the whole."""

    parts: tuple[tuple[Offsets, Tensor], ...] = ()
    """Offsets of each shard in the whole tensor, and its values."""


def lazy(value: Tensor | Lazy) -> Lazy:
    """Wrap a tensor as a lazy one; a sharded tensor is gathered when it is read."""
    if isinstance(value, Lazy):
        return value

    def read() -> Tensor:
        whole = to_host(value).full_tensor() if is_dtensor(value) else value
        return whole.detach().cpu()

    return Lazy(value.shape, value.dtype, read, is_dtensor(value))


def to_host(shard: DTensor, *, blank: bool = False) -> DTensor:
    """Return ``shard`` on the device type of its mesh, where collectives can exchange it.

    This is ``shard`` itself or, if its device is not the mesh's (PyTorch/XLA under a host mesh), a copy on the host, or
    with ``blank`` an uninitialised tensor of its shape.
    """
    from torch.distributed.tensor import DTensor

    local = shard._local_tensor  # to_local() gives a view, which XLA would compile a graph for
    if local.device.type == shard.device_mesh.device_type:
        return shard
    on_host = torch.empty(local.shape, dtype=local.dtype) if blank else local.detach().to("cpu", copy=True)
    return DTensor.from_local(
        on_host, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )


def tree_leaves(tree: Any) -> list[Any]:
    """Return all leaves of a nested dict or list."""
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``fn`` to every leaf of nested dicts, lists and tuples, and return the result as a new tree.

    In contrast to torch.utils._pytree, any Mapping is a dict, and None and torch.Size are leaves.
    """
    if isinstance(tree, Mapping):
        return {key: tree_map(fn, value) for key, value in tree.items()}
    if isinstance(tree, list | tuple) and not isinstance(tree, torch.Size):
        return type(tree)(tree_map(fn, value) for value in tree)
    return fn(tree)


def without_meta(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested dict without meta tensors, the placeholders of tensors that other processes hold."""
    local: dict[str, Any] = {}
    for key, value in tree.items():
        if not isinstance(value, Mapping):
            if not (isinstance(value, Tensor) and value.is_meta):
                local[key] = value
        elif (inner := without_meta(value)) or not value:
            local[key] = inner
    return local


def entries(tree: Any, parent: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors and plain values of a state by name (``model.blocks.0.bias``), as DCP names them.

    A list is one plain value unless it holds tensors. Empty mappings have no entries.
    """
    if isinstance(tree, Mapping) or _holds_tensors(tree):
        for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from entries(value, f"{parent}.{key}" if parent else str(key))
    else:
        yield parent, tree


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(leaf, Tensor | Lazy) for leaf in tree_leaves(value))


def fill_state(state: Any, saved: Any) -> None:
    """Fill ``state`` from a state with the same :func:`entries`: tensors in place, plain values replaced."""
    for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        if isinstance(value, Tensor):
            fill(value, saved[key])
        elif not (isinstance(value, Mapping) or _holds_tensors(value)):
            state[key] = saved[key]
        elif has_entries(value):
            fill_state(value, saved[key])


def has_entries(tree: Any) -> bool:
    """True if a state holds tensors or plain values. Formats may leave out a part without any, such as the states of
    an optimizer that has none."""
    return any(True for _ in entries(tree))


@torch.no_grad()
def fill(target: Tensor, value: Tensor | Lazy) -> None:
    """Copy ``value`` into ``target``, which may be sharded: each rank reads its shard, without communication.

    A meta tensor, the placeholder of a tensor that another process holds, is left unchanged.
    """
    if target.is_meta:
        return
    offsets, sizes = local_slice(target)
    values = value.slice(offsets, sizes) if isinstance(value, Lazy) else narrow(value, offsets, sizes)
    (target.to_local() if is_dtensor(target) else target).copy_(values)


def local_slice(tensor: Tensor) -> tuple[Offsets, Sizes]:
    """Return the slice of the whole tensor that this rank holds: all of it, unless ``tensor`` is a DTensor."""
    if not is_dtensor(tensor):
        return (0,) * tensor.dim(), tuple(tensor.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    # The offset of a rank without values may lie beyond the end.
    return tuple(map(min, offsets, tensor.shape)), tuple(sizes)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if shape, dtype and every bit are equal, including NaN payloads and the sign of zero."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    flat = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
    if all(t.numel() % 8 == t.storage_offset() % 8 == 0 for t in flat):
        flat = [t.view(torch.int64) for t in flat]  # six times as fast
    return torch.equal(*flat)


def same_values(a: Lazy, b: Lazy) -> bool:
    """:func:`same_bits` of tensors that are read for it, with at most one whole tensor in memory."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not (a.sliceable or b.sliceable):
        return same_bits(a.read(), b.read()) if a.nbytes <= _BLOCK else a.digest() == b.digest()
    sides = [side if side.sliceable else lazy(side.read().contiguous()) for side in (a, b)]
    count = max(1, _BLOCK * a.shape[0] // max(1, a.nbytes))
    starts = range(0, a.shape[0], count)
    return all(same_bits(*(side.part(row, min(count, a.shape[0] - row)) for side in sides)) for row in starts)
