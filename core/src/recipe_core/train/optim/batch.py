"""Parameters that are updated together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.layouts.reduction.reducer import local_shard
from recipe_core.train.optim.shards import ShardGroups, local_gradient
from recipe_core.train.optim.slices import matrix


@dataclass
class ParameterBatch:
    """Parameters of one device and dtype, sharded over the same ranks, with the same number of steps.

    The lists hold the local shard of each tensor as a matrix ``[first dimension, all others]``, or with its own shape
    where ``in_place``.
    """

    step: int
    """Number of this step, from 1."""
    shard_groups: ShardGroups
    """The process groups over which these parameters are sharded."""
    in_place: bool = False
    """One fused call updates them all, whatever their shapes."""
    parameters: list[nn.Parameter] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    firsts: list[Tensor] = field(default_factory=list)
    seconds: list[Tensor] = field(default_factory=list)
    masters: list[Tensor] = field(default_factory=list)
    """fp32 master weights, which take the updates; empty where the weights themselves do."""
    _noncontiguous: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def updated(self) -> list[Tensor]:
        """The tensors that take the updates: masters, else weights."""
        return self.masters or self.weights

    def add(self, parameter: nn.Parameter, state: Mapping[str, Tensor]) -> None:
        """Add a parameter that has a gradient."""
        self.parameters.append(parameter)
        view = _unchanged if self.in_place else matrix
        self.weights.append(view(self._contiguous(_local(parameter))))
        self.gradients.append(view(local_gradient(parameter).contiguous()))
        self.firsts.append(view(_local(state["exp_avg"])))
        self.seconds.append(view(_local(state["exp_avg_sq"])))
        if "master" in state:
            self.masters.append(matrix(_local(state["master"])))

    def _contiguous(self, weight: Tensor) -> Tensor:
        if not weight.is_contiguous():  # channels last, transposed
            self._noncontiguous.append((weight, weight.contiguous()))
            return self._noncontiguous[-1][1]
        return weight

    def parts(self, limit: int) -> Iterator[ParameterBatch]:
        """Batches of at most ``limit`` values each, or of one larger tensor.

        Sizes are those of whole tensors, not of local shards, so that all ranks make the same parts.
        """
        start = size = 0
        for number, parameter in enumerate(self.parameters):
            if number > start and size + parameter.numel() > limit:
                yield self._part(start, number)
                start, size = number, 0
            size += parameter.numel()
        yield self._part(start, len(self.parameters))

    def _part(self, start: int, stop: int) -> ParameterBatch:
        names = ("parameters", "weights", "gradients", "firsts", "seconds", "masters")
        return replace(self, **{name: getattr(self, name)[start:stop] for name in names})

    def finish(self) -> None:
        """Copy updates back into weights that are not contiguous."""
        for weight, copy in self._noncontiguous:
            weight.copy_(copy)


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _local(tensor: Tensor) -> Tensor:
    # A view of each plain tensor would take longer than a small model's update.
    return local_shard(tensor) if is_dtensor(tensor) else tensor
