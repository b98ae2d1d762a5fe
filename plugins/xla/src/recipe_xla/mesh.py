"""The ranks of a run on PyTorch/XLA as a grid with named axes."""

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
class Group:
    """The ranks along one axis that this rank is one of. No process group: PyTorch's functions refuse it."""

    ranks: tuple[int, ...]
    every: tuple[tuple[int, ...], ...]
    """The same of all ranks; a device's collective names them all."""
    host: dist.ProcessGroup | None
    """gloo, for what lives on the host; None where one process drives all devices."""

    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)


@dataclass(frozen=True)
class Axis:
    """One axis of a grid, as :class:`torch.distributed.device_mesh.DeviceMesh` tells of it."""

    place: int
    group: Group

    def get_local_rank(self) -> int:
        """Where this rank stands along the axis."""
        return self.place

    def get_group(self) -> Group:
        """The ranks along it."""
        return self.group

    def size(self) -> int:
        """How many there are."""
        return self.group.size()


class Grid:
    """Ranks 0 to N - 1, last axis fastest."""

    def __init__(self, axes: Mapping[str, int], found: Mapping[str, Axis], mesh: Mesh | None = None) -> None:
        self.sizes, self._found, self.mesh = dict(axes), dict(found), mesh

    def __getitem__(self, axis: str) -> Axis:
        return self._found[axis]

    @property
    def of_one_process(self) -> bool:
        """This process drives all its devices; else each has a process."""
        return self.mesh is not None

    @classmethod
    def of_processes(cls, axes: Mapping[str, int], rank: int, timeout: timedelta) -> Grid:
        """A grid of processes, each with a device of its own; all of them call it."""
        return cls(axes, {name: _axis(along(axes, name), rank, timeout) for name in axes})

    @classmethod
    def of_places(cls, axes: Mapping[str, int], places: Sequence[Sequence[int]], rank: int, timeout: timedelta) -> Grid:
        """A grid of processes that somebody else has placed; all of them call it.

        ``places``: of every rank, where it stands on each of the ``axes``, in their order.

        Raises:
            LaunchError: two ranks stand at one place, or one beside the grid.
        """
        sizes = tuple(axes.values())
        if len(places) != math.prod(sizes) or {tuple(place) for place in places} != set(np.ndindex(sizes)):
            words = " x ".join(f"{name}={size}" for name, size in axes.items())
            told = ", ".join(f"{number}: {tuple(place)}" for number, place in enumerate(places))
            raise LaunchError(f"layout: {words} expects a rank at each place of the grid, and they stand at {told}")
        numbers = np.empty(sizes, dtype=np.int64)
        for number, place in enumerate(places):
            numbers[tuple(place)] = number
        return cls(axes, {name: _axis(along(axes, name, numbers), rank, timeout) for name in axes})

    @classmethod
    def of_devices(cls, axes: Mapping[str, int]) -> Grid:
        """A grid of devices that this process drives all: it stands at the beginning of every axis."""
        from torch_xla.distributed.spmd import Mesh

        mesh = Mesh(np.arange(math.prod(axes.values())), tuple(axes.values()), tuple(axes))
        return cls(axes, {name: Axis(0, Group(tuple(range(size)), (), None)) for name, size in axes.items()}, mesh)


def along(axes: Mapping[str, int], name: str, numbers: NDArray[np.int64] | None = None) -> tuple[tuple[int, ...], ...]:
    """The ranks along one axis, for every place on the others; ``numbers``: which rank stands where."""
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
    return Axis(own.index(rank), Group(own, every, host))
