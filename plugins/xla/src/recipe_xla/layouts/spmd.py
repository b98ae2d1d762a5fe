"""SPMD: a model sharded over the XLA devices of one process by annotations, from which the compiler derives the rest.

Xu and others, "GSPMD: General and Scalable Parallelization for ML Computation Graphs" (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from recipe_core import Batch, Loss, Parallel, Run, materialise
from recipe_core.layouts.parallel import plain_name
from recipe_core.layouts.tensor_parallel.plan import assign
from recipe_xla.layouts.replicated import XlaParallel, replicated
from recipe_xla.mesh import DeviceGrid


def shard_with_annotations(module: nn.Module, run: Run) -> Parallel:
    """Shard ``module`` over the axis ``tp`` as its tensor plan says, and its samples over ``dp``.

    Raises:
        ConfigError: the model does not divide by the degree.
        PluginError: the plan does not fit it.
    """
    if run.mesh is None:
        return replicated(module, run)
    assert isinstance(run.mesh, DeviceGrid)
    sizes = run.mesh.sizes
    plan = assign(module, run.structure.plan, sizes["tp"]) if sizes.get("tp", 1) > 1 else None
    cuts = {cut.name: cut.dim for cut in plan.cuts.values() if cut.dim is not None} if plan else {}
    materialise(module, run.device)
    return Spmd(module, run, cuts)


class Spmd(XlaParallel):
    """A model whose micro batches hold the samples of all data-parallel ranks, rank after rank.

    Args:
        module: on the device.
        run: with a grid of devices.
        cuts: names of sharded parameters -> the sharded dimension.
    """

    def __init__(self, module: nn.Module, run: Run, cuts: Mapping[str, int]) -> None:
        super().__init__(module, run)
        self._cuts = {module.get_parameter(name): dim for name, dim in cuts.items()}
        self._optimizer: torch.optim.Optimizer | None = None
        for parameter in module.parameters():
            self._annotate(parameter, self._cuts.get(parameter))

    def attach_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep weights and states where they are, replicated or sharded.

        The compiler chooses a sharding for results without annotation: it would shard a bias in a step, and reading it
        would need another graph.
        """
        self._optimizer = optimizer

        def stay(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for parameter in self.parameters():
                if parameter.grad is not None:  # else the step did not change it
                    self._place(parameter)

        optimizer.register_step_post_hook(stay)

    @torch.no_grad()
    def on_state_loaded(self) -> None:
        """See :class:`Parallel`; makes the first weights (and loaded states) the result of a graph, like all later
        ones.

        The compiler distinguishes data from the host and results of graphs, even with the same sharding: without this,
        every graph before the first step would be compiled again after it.
        """
        for parameter in self.module.parameters():
            for tensor in self._with_states(parameter):
                tensor.mul_(1)
            self._place(parameter)
        self.collectives.sync()

    def _with_states(self, parameter: nn.Parameter) -> list[Tensor]:
        states = self._optimizer.state.get(parameter, {}).values() if self._optimizer else ()
        here = (state for state in states if (state.device, state.shape) == (parameter.device, parameter.shape))
        return [parameter, *here]

    def _place(self, parameter: nn.Parameter) -> None:
        for tensor in self._with_states(parameter):
            self._annotate(tensor, self._cuts.get(parameter))

    def with_placeholders(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`; no other process holds tensors. The tensors of a state dict are views of the
        parameters and do not know their sharding, so that reading each would need a graph: parameters replace them."""
        own = {plain_name(name): parameter for name, parameter in self.module.named_parameters()}

        def named(tensors: Mapping[str, Any]) -> dict[str, Any]:
            return {name: own.get(name, tensor) for name, tensor in tensors.items()}

        return {**state, "model": named(state["model"])} if "model" in state else named(state)

    def _annotate(self, tensor: Tensor, dim: int | None) -> None:
        from torch_xla.distributed.spmd import mark_sharding

        assert isinstance(self.run.mesh, DeviceGrid)
        mark_sharding(tensor, self.run.mesh.mesh, tuple("tp" if axis == dim else None for axis in range(tensor.ndim)))

    def loss(self, loss: Loss) -> Loss:
        """The mean of the losses of each data-parallel rank's samples, as separate ranks would compute it.

        It differs from the loss of all samples at once if a loss has weights (of masked words, each part has a
        different number).
        """
        ranks = self.run.local_dp_ranks

        def mean(output: Any, batch: Batch) -> Mapping[str, Tensor]:
            parts = [loss(_part(output, rank, ranks), _part(batch, rank, ranks)) for rank in range(ranks)]
            stacked = {name: torch.stack([part[name].float() for part in parts]) for name in parts[0]}
            largest = [name for name in stacked if self.reductions.get(name) == "max"]
            return {name: each.max() if name in largest else each.mean() for name, each in stacked.items()}

        return mean if ranks > 1 else loss

    def complete_gradients(self) -> None:
        """See :class:`Parallel`; the compiler has summed the gradients over all devices."""
        self.collectives.sync()


def _part(tree: Any, rank: int, ranks: int) -> Any:
    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        size = value.shape[0] // ranks
        return value[rank * size : (rank + 1) * size]

    return tree_map(cut, tree)
