"""A model over several XLA devices that one process drives, by annotations: the compiler cuts and exchanges (GSPMD).

Xu and others, "GSPMD: General and Scalable Parallelization for ML Computation Graphs" (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from recipe_core.initial import materialise
from recipe_core.layouts.traced import Traced, replicated
from recipe_core.parallel import Batch, Loss, Parallel, Run, plain_name
from recipe_core.tensor_parallel.plan import assign
from recipe_core.xla.groups import Grid


def annotated(module: nn.Module, run: Run) -> Parallel:
    """``module`` cut over the axis ``tp`` as its tensor plan says, its samples over ``dp``.

    Raises:
        ConfigError: the degree does not divide the model.
        PluginError: the plan does not fit it.
    """
    if run.mesh is None:
        return replicated(module, run)
    assert isinstance(run.mesh, Grid)
    sizes = run.mesh.sizes
    found = assign(module, run.structure.plan, sizes["tp"]) if sizes.get("tp", 1) > 1 else None
    cuts = {cut.name: cut.dim for cut in found.cuts.values() if cut.dim is not None} if found else {}
    materialise(module, run.device)
    return Spmd(module, run, cuts)


class Spmd(Traced):
    """A model whose micro batches hold the samples of all data-parallel ranks, one rank's after the other's.

    Args:
        module: on the device.
        run: with a grid of devices.
        cuts: parameters by name, each with the dimension along which the devices of a team divide it.
    """

    def __init__(self, module: nn.Module, run: Run, cuts: Mapping[str, int]) -> None:
        super().__init__(module, run)
        self._cuts = {module.get_parameter(name): dim for name, dim in cuts.items()}
        for parameter, dim in self._cuts.items():
            self._annotate(parameter, dim)

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Have weights and states stay where they are: the compiler might find another place for what a step makes."""

        def annotate(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for parameter, dim in self._cuts.items():
                states = optimizer.state.get(parameter, {}).values()
                for tensor in (parameter, *(state for state in states if state.shape == parameter.shape)):
                    self._annotate(tensor, dim)

        optimizer.register_step_post_hook(annotate)

    def with_others(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`; nothing is elsewhere. A state dict's tensors are views of the parameters, which do not
        know over which devices these are cut: the parameters take their place."""
        cut = {plain_name(name): p for name, p in self.module.named_parameters() if p in self._cuts}

        def named(tensors: Mapping[str, Any]) -> dict[str, Any]:
            return {name: cut.get(name, tensor) for name, tensor in tensors.items()}

        return {**state, "model": named(state["model"])} if "model" in state else named(state)

    def _annotate(self, tensor: Tensor, dim: int) -> None:
        from torch_xla.distributed.spmd import mark_sharding

        assert isinstance(self.run.mesh, Grid)
        mark_sharding(tensor, self.run.mesh.mesh, tuple("tp" if axis == dim else None for axis in range(tensor.ndim)))

    def loss(self, loss: Loss) -> Loss:
        """The mean of what each data-parallel rank's samples give, as ranks of their own would have it.

        That is not the loss of all samples at once where a loss has weights (masked words, of which each part has
        another number).
        """
        ranks = self.run.together

        def mean(output: Any, batch: Batch) -> Mapping[str, Tensor]:
            parts = [loss(_part(output, rank, ranks), _part(batch, rank, ranks)) for rank in range(ranks)]
            return {name: torch.stack([part[name].float() for part in parts]).mean() for name in parts[0]}

        return mean if ranks > 1 else loss

    def _complete(self) -> None:
        """The compiler has summed the gradients over all devices."""
        self.collectives.sync()


def _part(tree: Any, rank: int, ranks: int) -> Any:
    """One rank's share of everything in ``tree`` along the first dimension."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        size = value.shape[0] // ranks
        return value[rank * size : (rank + 1) * size]

    return tree_map(cut, tree)
