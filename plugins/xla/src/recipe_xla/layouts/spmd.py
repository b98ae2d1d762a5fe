"""A model over several XLA devices that one process drives, by annotations: the compiler cuts and exchanges (GSPMD).

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
from recipe_xla.layouts.replicated import Traced, replicated
from recipe_xla.mesh import Grid


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
        self._optimizer: torch.optim.Optimizer | None = None
        for parameter in module.parameters():
            self._annotate(parameter, self._cuts.get(parameter))

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Have weights and states stay where they are, whole or cut.

        The compiler finds a place of its own for what nobody annotates: a bias would come out of a step cut, and to
        read it would be one more graph.
        """
        self._optimizer = optimizer

        def stay(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            for parameter in self.parameters():
                if parameter.grad is not None:  # else the step left it as it was
                    self._place(parameter)

        optimizer.register_step_post_hook(stay)

    @torch.no_grad()
    def settle(self) -> None:
        """See :class:`Parallel`: a graph makes the first weights (and states, where a run goes on), as all later ones.

        A graph that takes what the host brought is another one than that which takes what a graph made, though both are
        cut in the same way: every graph before the first step would be compiled once more after it.
        """
        for parameter in self.module.parameters():
            for tensor in self._beside(parameter):
                tensor.mul_(1)
            self._place(parameter)
        self.collectives.sync()

    def _beside(self, parameter: nn.Parameter) -> list[Tensor]:
        """A parameter with those of its optimizer states that lie where it does."""
        states = self._optimizer.state.get(parameter, {}).values() if self._optimizer else ()
        here = (state for state in states if (state.device, state.shape) == (parameter.device, parameter.shape))
        return [parameter, *here]

    def _place(self, parameter: nn.Parameter) -> None:
        for tensor in self._beside(parameter):
            self._annotate(tensor, self._cuts.get(parameter))

    def with_others(self, state: dict[str, Any]) -> dict[str, Any]:
        """See :class:`Parallel`; nothing is elsewhere. A state dict's tensors are views of the parameters, which do not
        know where these are, so that each is a graph when it is read: the parameters take their place."""
        own = {plain_name(name): parameter for name, parameter in self.module.named_parameters()}

        def named(tensors: Mapping[str, Any]) -> dict[str, Any]:
            return {name: own.get(name, tensor) for name, tensor in tensors.items()}

        return {**state, "model": named(state["model"])} if "model" in state else named(state)

    def _annotate(self, tensor: Tensor, dim: int | None) -> None:
        """Have the devices of each team divide ``tensor`` along ``dim``; None: all have the whole of it."""
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
            stacked = {name: torch.stack([part[name].float() for part in parts]) for name in parts[0]}
            largest = [name for name in stacked if self.reductions.get(name) == "max"]
            return {name: each.max() if name in largest else each.mean() for name, each in stacked.items()}

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
