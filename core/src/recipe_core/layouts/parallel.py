"""The context of a run, the protocol of datasets, and a model after its layout was applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from recipe_core.engine.loader import Batch as Batch  # datasets and models import it from here
from recipe_core.hooks.specs import Reduction, Structure
from recipe_core.hooks.train import Train
from recipe_core.layouts import gradients

if TYPE_CHECKING:
    from recipe_core.engine.protocol import Engine

Loss = Callable[[Any, Batch], Mapping[str, Tensor]]
"""The loss of a model: the module's output and the micro batch to scalar tensors by name, ``loss`` among them."""
Micro = Callable[[nn.Module, Batch, int], Mapping[str, Tensor]]
"""Forward and loss of one micro batch: module, batch, and which micro batch of the step it is."""
Reductions = Mapping[str, Reduction]
"""How metrics are reduced, by name; those that are not named are averaged."""
COUNTED: Reductions = {"real_tokens": "count", "sequences": "count"}
"""Counts unless a model says otherwise: tokens that are no padding, and sequences, of which a packed sample holds
several."""
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}
"""Parts of a parameter's name that torch.compile and checkpoint_wrapper put in; torch's functions leave them out."""


def plain_name(name: str) -> str:
    """The name of a parameter in the bare model, which checkpoints use."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def own_loss(config: object, own: Loss) -> Loss:
    """The loss that the model itself brings."""
    return own


def without_counts(values: Mapping[str, Tensor], reductions: Reductions) -> dict[str, Tensor]:
    """The values of a loss that are no counts."""
    return {name: value for name, value in values.items() if reductions.get(name) != "count"}


def accumulate(
    total: dict[str, Tensor], values: Mapping[str, Tensor], micro_batches: int, reductions: Reductions
) -> None:
    """Reduce what the loss of one of ``micro_batches`` gave into ``total``; counts stay whole numbers."""
    for name, tensor in values.items():
        reduction, value = reductions.get(name, "mean"), tensor.detach()
        value = value.long() if reduction == "count" else value.float()
        if reduction == "mean":
            value = value / micro_batches
        if name not in total:
            total[name] = value
        elif reduction == "max":
            total[name] = torch.maximum(total[name], value)
        else:
            total[name] = total[name] + value


@dataclass(frozen=True, kw_only=True)
class Run:
    """The context of the run that a contribution is built for."""

    device: torch.device
    mesh: DeviceMesh | None
    """The axes that the layout named; None where no process group exists."""
    rank: int
    world_size: int
    local_rank: int
    dp_rank: int
    """Which part of each global batch is this rank's; equal for ranks that share their samples."""
    dp_size: int
    train: Train
    cache: Path
    """Folder on this machine for indices and prepared data."""
    vocabulary: int | None = None
    """Token ids that the model takes are below this; None where it does not say."""
    structure: Structure = field(default_factory=Structure)
    """How the model may be divided."""
    together: int = 1
    """Data-parallel ranks whose samples this process reads: all of them, where it drives all devices of the run."""
    engine: Engine | None = None
    """The device and the other ranks; None where a part is built outside of a run."""

    @property
    def train_samples(self) -> int:
        """Samples that the whole schedule consumes."""
        return self.train.steps * self.train.global_batch


class Samples(Protocol):
    """An endless global order of samples, a function of the seed alone; datasets build it."""

    def read(self, split: str, start: int, count: int) -> Batch:
        """Samples ``start`` to ``start + count - 1`` of ``split`` (``"train"`` or ``"valid"``).

        CPU tensors of shape ``[count, ...]``; narrow integers become int64 on the device. Mostly called with growing
        ``start``, from one thread at a time, which is not always the main thread.
        """
        ...


class StepGivenUp(Exception):  # the step failed nobody
    """Raised by a :data:`Micro` on all ranks, for the same micro batch: no later one of this step is to be computed."""


class Parallel:
    """A model after its layout was applied: what to optimise and save, and how one step runs.

    Args:
        module: the model; its names are those of the checkpoint.
        replica: a DistributedDataParallel around ``module``, where ranks hold copies of it.
    """

    lag = 0
    """Micro batches that other ranks may be behind when this one begins the next."""

    def __init__(self, module: nn.Module, replica: DistributedDataParallel | None = None) -> None:
        self.module = module
        self.replica = replica
        self.shard_groups: dict[str, tuple[ProcessGroup, ...]] = {}
        """Of parameters (by name) that are shards as plain tensors, the groups of ranks that hold the other shards. A
        DTensor knows its own."""
        self.reductions: Reductions = COUNTED
        """How what the loss returns is reduced."""

    def parameters(self) -> list[nn.Parameter]:
        """Trainable parameters, tied ones once."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def size(self) -> int:
        """Trainable parameters of the whole model; a collective, where processes hold different ones."""
        return sum(parameter.numel() for parameter in self.parameters())

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The same with the names that they have in checkpoints."""
        every = self.module.named_parameters()
        return [(plain_name(name), p) for name, p in every if p.requires_grad]

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Told of the optimizer of :meth:`parameters` before its first step."""

    def settle(self) -> None:
        """Told when weights and optimizer states have the values that training begins with."""

    def with_others(self, state: dict[str, Any]) -> dict[str, Any]:
        """``state`` (nested, of this process) with meta tensors in the place of those that only other processes hold.

        A collective, where processes hold different parameters.
        """
        return state

    def own(self, state: dict[str, Any]) -> dict[str, Any]:
        """The reverse of :meth:`with_others`, of a state that was filled: what this process's own tensors take."""
        return state

    def stages(self, name: str) -> tuple[tuple[int, ...], int]:
        """The stages of a pipeline that hold the parameter or buffer ``name`` (or what the optimizer keeps of it), and
        how many there are."""
        return (0,), 1

    @contextmanager
    def gathered(self) -> Iterator[dict[str, Tensor]]:
        """The weights that every data-parallel rank computes with, by name, where it keeps but a part of them between
        steps; empty where what is computed with is what is kept. A collective."""
        yield {}

    def loss(self, loss: Loss) -> Loss:
        """The loss function that this process applies to its output: ``loss``, unless others compute it."""
        return loss

    def backward(self, batches: Sequence[Batch], micro: Micro) -> dict[str, Tensor]:
        """Add the gradients of the mean loss over ``batches``, reduced over ranks once, after the last one.

        Returns what ``micro`` gave, reduced over this rank's micro batches as ``reductions`` says.

        Raises:
            StepGivenUp: ``micro`` did; the gradients are good for nothing.
        """
        total: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            with self._reduce(number == len(batches) - 1):
                values = micro(self.replica or self.module, batch, number)
                (values["loss"] / len(batches)).backward()
            accumulate(total, values, len(batches), self.reductions)
        self._complete()
        return total

    def _reduce(self, last: bool) -> AbstractContextManager[None]:
        """Keep DistributedDataParallel from reducing before the last micro batch."""
        return nullcontext() if last or self.replica is None else self.replica.no_sync()

    def give_up(self) -> None:
        """Let go of what a step that was given up leaves in the model; a collective."""
        for parameter in self.parameters():
            parameter.grad = None

    def _complete(self) -> None:
        """Finish the gradients after the last micro batch."""

    @torch.no_grad()
    def evaluate(self, batch: Batch, micro: Micro) -> dict[str, Tensor]:
        """The values of ``micro`` for ``batch`` without dropout and gradients."""
        was_training = self.module.training
        self.module.eval()
        try:
            return {name: value.float() for name, value in micro(self.module, batch, 0).items()}
        finally:
            self.module.train(was_training)

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """A module that all ranks call together with the same batch, for other ends than training."""
        yield self.module

    def norm(self) -> Tensor:
        """The global gradient norm. Sharded and plain gradients may stand side by side."""
        return gradients.total_norm([p.grad for p in self.parameters() if p.grad is not None])

    def clip(self, limit: float) -> Tensor:
        """Scale all gradients so that their global norm is at most ``limit`` (0: no limit); return the norm."""
        total = self.norm()
        if limit:
            gradients.clip(self.parameters(), limit, total)
        return total
