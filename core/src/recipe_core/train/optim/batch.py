"""Parameters that one call updates together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from recipe_core.layouts.reducer import local_shard
from recipe_core.train.optim.pieces import matrix
from recipe_core.train.optim.shards import Groups, local_gradient


@dataclass
class ParameterBatch:
    """Parameters of one device and one dtype, sharded over the same ranks, with equally many steps behind them.

    The lists of tensors hold what this process has of each, as matrices ``[first dimension, all others]``; where
    ``in_place``, whole tensors of any shape.
    """

    step: int
    """Which step of theirs this is, from 1."""
    shard_groups: Groups
    """The groups over which these parameters are sharded."""
    in_place: bool = False
    """One call updates them all in their own memory, whatever their shapes."""
    parameters: list[nn.Parameter] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    firsts: list[Tensor] = field(default_factory=list)
    seconds: list[Tensor] = field(default_factory=list)
    masters: list[Tensor] = field(default_factory=list)
    """Wider copies of the weights, which take the updates; empty where the weights themselves do."""
    _scattered: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def updated(self) -> list[Tensor]:
        """The tensors that take the updates."""
        return self.masters or self.weights

    def add(self, parameter: nn.Parameter, state: Mapping[str, Tensor]) -> None:
        """Take one more parameter, which has a gradient."""
        self.parameters.append(parameter)
        seen = _whole if self.in_place else matrix
        self.weights.append(seen(self._contiguous(_local(parameter))))
        self.gradients.append(seen(local_gradient(parameter).contiguous()))
        self.firsts.append(seen(_local(state["exp_avg"])))
        self.seconds.append(seen(_local(state["exp_avg_sq"])))
        if "master" in state:
            self.masters.append(matrix(_local(state["master"])))

    def _contiguous(self, weight: Tensor) -> Tensor:
        """``weight``, or a copy of one that lies scattered in memory (channels last, transposed)."""
        if not weight.is_contiguous():
            self._scattered.append((weight, weight.contiguous()))
            return self._scattered[-1][1]
        return weight

    def parts(self, limit: int) -> Iterator[ParameterBatch]:
        """Batches of at most ``limit`` values each, or of one larger tensor.

        The whole tensors count, not what this process has of them, so that all ranks make the same parts.
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
        """Write back what had to be copied."""
        for weight, copy in self._scattered:
            weight.copy_(copy)


def _whole(tensor: Tensor) -> Tensor:
    return tensor


def _local(tensor: Tensor) -> Tensor:
    """The local shard, or the tensor itself: a view of each would take longer than a small model's update."""
    return local_shard(tensor) if isinstance(tensor, DTensor) else tensor
