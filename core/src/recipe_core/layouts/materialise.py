"""Initial values of a model that was built on the meta device, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.layouts.ties import replace


class Deferred(Protocol):
    """A module that was built on the meta device and knows the initial value of each of its tensors."""

    def initial_value(self, name: str, shape: torch.Size) -> Tensor:
        """The whole value of the parameter or buffer ``name``, on the CPU.

        A submodule that a transform changed may have such a method, too: it is asked first for its own parameters,
        with their names in the whole model, and returns None for those that it leaves to the model.

        It depends on ``torch.initial_seed()``, the name and the shape alone: not on the device, nor on the shards that
        this process holds.
        """
        ...


@torch.no_grad()
def materialise(
    module: nn.Module, device: torch.device, part: nn.Module | None = None, names: Mapping[str, str] | None = None
) -> None:
    """Give the parameters and buffers of ``part`` (None: all of ``module``) their values, on ``device``.

    Tensors on the meta device get the initial values of :class:`Deferred`, of which this process keeps its shard;
    others are moved. At most one whole tensor exists at a time besides the shards. ``names`` maps names in ``module``
    to those in the whole model, for tied parameters whose first name is on another stage. Tied parameters stay tied.
    """
    wanted = None if part is None else {*part.parameters(), *part.buffers()}
    new: dict[Tensor, Tensor] = {}
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):  # tied ones once
        if wanted is None or tensor in wanted:
            placed = _with_value(module, (names or {}).get(name, name), tensor, device)
            new[tensor] = nn.Parameter(placed, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else placed
    replace(module, new)


def _with_value(module: nn.Module, name: str, tensor: Tensor, device: torch.device) -> Tensor:
    local = tensor.to_local() if is_dtensor(tensor) else tensor.detach()
    if local.is_meta:
        whole = initial_value(module, name, tensor.shape)
        placed = torch.empty_like(local, device=device).copy_(_local_shard(whole, tensor))
    else:
        placed = local.to(device)
    if is_dtensor(tensor):
        return tensor.from_local(
            placed, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )
    return placed


def initial_value(module: nn.Module, name: str, shape: torch.Size) -> Tensor:
    """The initial value of ``name``: of the submodule that has it, if that one knows it, else of the model."""
    owner: Any = module
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part, None)
    own: Tensor | None = None
    if owner is not module and hasattr(owner, "initial_value"):
        own = owner.initial_value(name, shape)
    return cast("Deferred", module).initial_value(name, shape) if own is None else own


def _local_shard(whole: Tensor, tensor: Tensor) -> Tensor:
    if is_dtensor(tensor):
        from torch.distributed.tensor import Shard

        mesh = tensor.device_mesh
        for axis, placement in enumerate(tensor.placements):
            if isinstance(placement, Shard):
                whole = whole.chunk(mesh.size(axis), placement.dim)[mesh.get_local_rank(axis)]
    return whole
