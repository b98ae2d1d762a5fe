"""Tensor parallelism on Neuron over PyTorch/XLA: one process per device, and neuronx-distributed's layers."""

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
from recipe_core.checkpoint.lazy import to_host
from recipe_core.layouts.parallel import plain_name
from recipe_core.layouts.reduction import gradients
from recipe_core.layouts.tensor_parallel.plan import assign
from recipe_core.layouts.ties import replace
from recipe_xla import neuronx
from recipe_xla.collectives import average_gradients
from recipe_xla.layouts.cut import ParameterShard, cut, exchange_layers
from recipe_xla.layouts.replicated import XlaParallel
from recipe_xla.mesh import DeviceGrid


def tensor_parallel(module: nn.Module, run: Run) -> Parallel:
    """Shard ``module`` over this rank's tensor-parallel group, as its tensor plan says; tied parameters stay tied.

    Args:
        module: may be on the meta device.
        run: with a grid of processes, see :func:`recipe_xla.neuronx.grid`.

    Raises:
        ConfigError: the model does not divide by the degree, or neuronx-distributed cannot be imported.
        PluginError: the plan does not fit the model.
    """
    axis = cast("DeviceGrid", run.mesh)["tp"]
    rank, size = axis.get_local_rank(), axis.size()
    plan, dense = assign(module, run.structure.plan, size), _without_values(module)
    shards = cut(module, plan, rank, size, run.device)
    materialise(module, run.device)
    for name, shard in shards.items():
        neuronx.mark(module.get_parameter(name), shard.dim)
    exchange_layers(module, plan, run, rank, size)
    return NeuronTensorParallel(module, run, shards, plan.partial, dense)


def _without_values(module: nn.Module) -> nn.Module:
    # A copy on the meta device, with the same ties.
    memo: dict[int, Any] = {}
    for tensor in chain(module.parameters(), module.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


class NeuronTensorParallel(XlaParallel):
    """A model sharded over a tensor-parallel group of processes; gradients are averaged over data-parallel ranks.

    Args:
        module: this rank's, on the device.
        run: with a grid of processes.
        shards: the sharded parameters, by name.
        partial: replicated parameters (owner and name) of whose gradient each rank has only its part.
        dense: the whole model, on the meta device.
    """

    def __init__(
        self, module: nn.Module, run: Run, shards: Mapping[str, ParameterShard], partial: list[tuple[nn.Module, str]],
        dense: nn.Module,
    ) -> None:  # fmt: skip
        super().__init__(module, run)
        self._tp_group = cast("DeviceGrid", run.mesh)["tp"].get_group()
        self._shards, self._partial, self._dense = dict(shards), partial, dense
        self.shard_groups = {name: (neuronx.tensor_parallel_group(),) for name in shards}
        assert self._tp_group.host is not None  # each rank is a process
        self._mesh = DeviceMesh.from_group(self._tp_group.host, "cpu", mesh_dim_names=("tp",))

    def size(self) -> int:
        """See :class:`Parallel`."""
        shapes = {name: shard.shape for name, shard in self._shards.items()}
        return sum(shapes.get(name, parameter.shape).numel() for name, parameter in self.named_parameters())

    def with_placeholders(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`; shards become DTensors, as with PyTorch's own engine, and share their memory."""
        return _by_name(state, self._global) if "model" in state else _changed(state, self._global)

    def local_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`."""
        return _by_name(state, self._local)

    def _global(self, name: str, value: Any) -> Any:
        # The shard of a parameter, or of a state of its shape, as a DTensor.
        shard = self._shards.get(name)
        if shard is None or not isinstance(value, Tensor) or value.ndim != len(shard.shape):
            return value
        local = value.detach()
        if shard.held < shard.most:
            local = local.narrow(shard.dim, 0, shard.held)
        stride = torch.empty(shard.shape, device="meta").stride()
        spec = DTensorSpec(self._mesh, (Shard(shard.dim),), TensorMeta(shard.shape, stride, value.dtype))
        return DTensor(local, spec, requires_grad=False)

    def _local(self, name: str, value: Any) -> Any:
        return self._shards[name].pad(value.to_local()) if isinstance(value, DTensor) else value

    def complete_gradients(self) -> None:
        """See :class:`Parallel`; a replicated parameter gets the sum over the shards that used it."""
        super().complete_gradients()
        parameters = dict.fromkeys(getattr(owner, name) for owner, name in self._partial)  # tied ones once
        partial = [p for p in parameters if p.grad is not None]
        if partial:
            average_gradients(partial, self.collectives, self._tp_group, 0)
            for parameter in partial:
                assert parameter.grad is not None
                parameter.grad = parameter.grad * self._tp_group.size()

    def norm(self) -> Tensor:
        """See :class:`Parallel`; a replicated parameter counts once."""
        named = [(name, p.grad) for name, p in self.named_parameters() if p.grad is not None]
        cut = [gradient for name, gradient in named if name in self._shards]
        whole = [gradient for name, gradient in named if name not in self._shards]
        total = self.collectives.mean(gradients.sum_of_squares(cut), self._tp_group) * self._tp_group.size()
        return (total + gradients.sum_of_squares(whole)).sqrt() if whole else total.sqrt()

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """See :class:`Parallel`; the whole model on the host of every rank, gathered from the shards."""
        whole = copy.deepcopy(self._dense).train(self.module.training)
        held = dict(chain(self.module.named_parameters(), self.module.named_buffers()))
        new: dict[Tensor, Tensor] = {}
        for name, tensor in chain(whole.named_parameters(), whole.named_buffers()):
            value = self._global(plain_name(name), held[name])
            value = to_host(value).full_tensor() if isinstance(value, DTensor) else value.detach().to("cpu", copy=True)
            new[tensor] = nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
        replace(whole, new)
        yield whole


Change = Callable[[str, Any], Any]
"""Converts a value that belongs to the parameter of this name."""


def _by_name(state: Mapping[str, Any], change: Change) -> dict[str, Any]:
    changed = {**state, "model": _changed(state["model"], change)}
    if "optimizer" in state:
        kept = state["optimizer"]["state"]
        states = {name: {kind: change(name, value) for kind, value in kinds.items()} for name, kinds in kept.items()}
        changed["optimizer"] = {**state["optimizer"], "state": states}
    return changed


def _changed(tensors: Mapping[str, Any], change: Change) -> dict[str, Any]:
    return {name: change(name, tensor) for name, tensor in tensors.items()}
