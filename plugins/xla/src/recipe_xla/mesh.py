"""The mesh of a run on PyTorch/XLA: a grid of ranks or devices with named axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from recipe_core import LaunchError

if TYPE_CHECKING:
    from torch_xla.distributed.spmd import Mesh


@dataclass(frozen=True)
class DeviceGroup:
    """The ranks along one axis that include this rank. Not a ProcessGroup: PyTorch's functions refuse it."""

    ranks: tuple[int, ...]
    every: tuple[tuple[int, ...], ...]
    """The groups of all ranks along the axis, which a collective on devices names."""
    host: dist.ProcessGroup | None
    """A gloo group for tensors on the host; None if one process drives all devices."""

    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)


@dataclass(frozen=True)
class Axis:
    """One axis of a grid, with the methods of :class:`torch.distributed.device_mesh.DeviceMesh`."""

    place: int
    group: DeviceGroup

    def get_local_rank(self) -> int:
        """The position of this rank along the axis."""
        return self.place

    def get_group(self) -> DeviceGroup:
        """The ranks along the axis."""
        return self.group

    def size(self) -> int:
        """The number of ranks along the axis."""
        return self.group.size()


class DeviceGrid:
    """Ranks 0 to N - 1, last axis fastest."""

    def __init__(self, axes: Mapping[str, int], by_name: Mapping[str, Axis], mesh: Mesh | None = None) -> None:
        self.sizes, self._by_name, self.mesh = dict(axes), dict(by_name), mesh

    def __getitem__(self, axis: str) -> Axis:
        return self._by_name[axis]

    @property
    def of_one_process(self) -> bool:
        """True if this process drives all devices; else each has a process."""
        return self.mesh is not None

    @classmethod
    def of_processes(cls, axes: Mapping[str, int], rank: int, timeout: timedelta) -> DeviceGrid:
        """A grid of processes, each with a device of its own; all of them call it."""
        return cls(axes, {name: _axis(along(axes, name), rank, timeout) for name in axes})

    @classmethod
    def of_places(
        cls, axes: Mapping[str, int], places: Sequence[Sequence[int]], rank: int, timeout: timedelta
    ) -> DeviceGrid:
        """A grid of processes at given positions; all of them call it.

        ``places``: the position of every rank on the ``axes``, in their order.

        Raises:
            LaunchError: two ranks have one position, or a position is outside of the grid.
        """
        sizes = tuple(axes.values())
        if len(places) != math.prod(sizes) or {tuple(place) for place in places} != set(np.ndindex(sizes)):
            shape = " x ".join(f"{name}={size}" for name, size in axes.items())
            positions = ", ".join(f"{number}: {tuple(place)}" for number, place in enumerate(places))
            raise LaunchError(
                f"layout: {shape} expects a rank at each place of the grid, and they stand at {positions}"
            )
        numbers = np.empty(sizes, dtype=np.int64)
        for number, place in enumerate(places):
            numbers[tuple(place)] = number
        return cls(axes, {name: _axis(along(axes, name, numbers), rank, timeout) for name in axes})

    @classmethod
    def of_devices(cls, axes: Mapping[str, int]) -> DeviceGrid:
        """A grid of devices that this process drives; its position is 0 on every axis."""
        from torch_xla.distributed.spmd import Mesh

        mesh = Mesh(np.arange(math.prod(axes.values())), tuple(axes.values()), tuple(axes))
        return cls(
            axes, {name: Axis(0, DeviceGroup(tuple(range(size)), (), None)) for name, size in axes.items()}, mesh
        )


def along(axes: Mapping[str, int], name: str, numbers: NDArray[np.int64] | None = None) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks along the axis ``name``; ``numbers``: the grid of ranks (None: in order)."""
    if numbers is None:
        numbers = np.arange(math.prod(axes.values())).reshape(list(axes.values()))
    rows = np.moveaxis(numbers, list(axes).index(name), -1).reshape(-1, axes[name])
    return tuple(tuple(int(number) for number in row) for row in rows)


def _axis(every: tuple[tuple[int, ...], ...], rank: int, timeout: timedelta) -> Axis:
    host = None
    for ranks in every:  # all ranks make all groups, in the same order
        made = dist.new_group(list(ranks), timeout=timeout, backend="gloo")
        if rank in ranks:
            host, own = made, ranks
    return Axis(own.index(rank), DeviceGroup(own, every, host))
