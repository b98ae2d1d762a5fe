"""Tensor parallelism on Neuron over PyTorch/XLA: a process for each device, and neuronx-distributed's layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from recipe_core import Parallel, Run, materialise
from recipe_core.checkpoint.lazy import hosted
from recipe_core.layouts import gradients
from recipe_core.layouts.parallel import plain_name
from recipe_core.layouts.tensor_parallel.plan import assign
from recipe_core.layouts.ties import replace
from recipe_xla import neuronx
from recipe_xla.collectives import average_gradients
from recipe_xla.layouts.cut import Share, cut, exchange_layers
from recipe_xla.layouts.replicated import Traced
from recipe_xla.mesh import Grid


def teamed(module: nn.Module, run: Run) -> Parallel:
    """``module`` with the layers that its tensor plan cuts over the team of this rank; ties stay.

    Args:
        module: with or without values (on the meta device).
        run: with a grid of processes, see :func:`recipe_xla.neuronx.grid`.

    Raises:
        ConfigError: the degree does not divide the model, or neuronx-distributed cannot be imported.
        PluginError: the plan does not fit the model.
    """
    axis = cast("Grid", run.mesh)["tp"]
    rank, size = axis.get_local_rank(), axis.size()
    found, dense = assign(module, run.structure.plan, size), _without_values(module)
    shares = cut(module, found, rank, size, run.device)
    materialise(module, run.device)
    for name, share in shares.items():
        neuronx.mark(module.get_parameter(name), share.dim)
    exchange_layers(module, found, run, rank, size)
    return NeuronTeam(module, run, shares, found.partial, dense)


def _without_values(module: nn.Module) -> nn.Module:
    """A copy of ``module`` on the meta device; what was tied is tied."""
    memo: dict[int, Any] = {}
    for tensor in chain(module.parameters(), module.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


class NeuronTeam(Traced):
    """A model whose layers a team of processes shares; its copies on other teams get the mean of the gradients.

    Args:
        module: this rank's, on the device.
        run: with a grid of processes.
        shares: parameters by name, as far as they are divided.
        partial: parameters (owner and name) that all ranks of a team have, while each has its part of the gradient.
        dense: the model that nobody divided, without values.
    """

    def __init__(
        self, module: nn.Module, run: Run, shares: Mapping[str, Share], partial: list[tuple[nn.Module, str]],
        dense: nn.Module,
    ) -> None:  # fmt: skip
        super().__init__(module, run)
        self._team = cast("Grid", run.mesh)["tp"].get_group()
        self._shares, self._partial, self._dense = dict(shares), partial, dense
        self.shard_groups = {name: (neuronx.tensor_parallel_group(),) for name in shares}
        assert self._team.host is not None  # each rank is a process
        self._mesh = DeviceMesh.from_group(self._team.host, "cpu", mesh_dim_names=("tp",))

    def size(self) -> int:
        """See :class:`Parallel`."""
        shapes = {name: share.shape for name, share in self._shares.items()}
        return sum(shapes.get(name, parameter.shape).numel() for name, parameter in self.named_parameters())

    def with_others(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`; a share becomes the DTensor that it is natively. They have one memory."""
        return _by_name(state, self._global) if "model" in state else _changed(state, self._global)

    def own(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`."""
        return _by_name(state, self._local)

    def _global(self, name: str, value: Any) -> Any:
        """A parameter's share, or a state's of its shape, as a part of the whole."""
        share = self._shares.get(name)
        if share is None or not isinstance(value, Tensor) or value.ndim != len(share.shape):
            return value
        local = value.detach()
        if share.held < share.most:
            local = local.narrow(share.dim, 0, share.held)
        stride = torch.empty(share.shape, device="meta").stride()
        spec = DTensorSpec(self._mesh, (Shard(share.dim),), TensorMeta(share.shape, stride, value.dtype))
        return DTensor(local, spec, requires_grad=False)

    def _local(self, name: str, value: Any) -> Any:
        return self._shares[name].filled(value.to_local()) if isinstance(value, DTensor) else value

    def _complete(self) -> None:
        super()._complete()
        some = {getattr(owner, name): None for owner, name in self._partial}
        found = [p for p in some if p.grad is not None]
        if found:
            average_gradients(found, self.collectives, self._team, 0)
            for parameter in found:
                assert parameter.grad is not None
                parameter.grad = parameter.grad * self._team.size()

    def norm(self) -> Tensor:
        """See :class:`Parallel`; what all ranks of a team hold counts once."""
        named = [(name, p.grad) for name, p in self.named_parameters() if p.grad is not None]
        cut = [gradient for name, gradient in named if name in self._shares]
        whole = [gradient for name, gradient in named if name not in self._shares]
        total = self.collectives.mean(gradients.sum_of_squares(cut), self._team) * self._team.size()
        return (total + gradients.sum_of_squares(whole)).sqrt() if whole else total.sqrt()

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """See :class:`Parallel`: the whole model on the host of every rank, put together from the shares."""
        found = copy.deepcopy(self._dense).train(self.module.training)
        held = dict(chain(self.module.named_parameters(), self.module.named_buffers()))
        new: dict[Tensor, Tensor] = {}
        for name, tensor in chain(found.named_parameters(), found.named_buffers()):
            value = self._global(plain_name(name), held[name])
            value = hosted(value).full_tensor() if isinstance(value, DTensor) else value.detach().to("cpu", copy=True)
            new[tensor] = nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
        replace(found, new)
        yield found


Change = Callable[[str, Any], Any]
"""The conversion of a value that belongs to the parameter of a name."""


def _by_name(state: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """A state with every value that belongs to a parameter changed: weights, and what the optimizer keeps of each."""
    found = {**state, "model": _changed(state["model"], change)}
    if "optimizer" in state:
        kept = state["optimizer"]["state"]
        states = {name: {kind: change(name, value) for kind, value in kinds.items()} for name, kinds in kept.items()}
        found["optimizer"] = {**state["optimizer"], "state": states}
    return found


def _changed(tensors: Mapping[str, Any], change: Change) -> dict[str, Any]:
    return {name: change(name, tensor) for name, tensor in tensors.items()}
