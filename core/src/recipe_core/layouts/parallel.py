"""A model under its layout, the context of a run, and the protocol of datasets."""

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
from recipe_core.hooks import earlier
from recipe_core.hooks.specs import Reduction, Structure
from recipe_core.hooks.train import Train
from recipe_core.layouts.reduction import gradients

if TYPE_CHECKING:
    from recipe_core.engine.protocol import Engine

Loss = Callable[[Any, Batch], Mapping[str, Tensor]]
"""The loss function of a model: ``(output, micro batch) -> scalar tensors by name``, ``loss`` among them."""
Micro = Callable[[nn.Module, Batch, int], Mapping[str, Tensor]]
"""Forward and loss of one micro batch: ``(module, batch, number of the micro batch in the step) -> values``."""
Reductions = Mapping[str, Reduction]
"""How metrics are reduced, by name; the default is the mean."""
COUNTED: Reductions = {"real_tokens": "count", "sequences": "count"}
"""Counts unless a model says otherwise: tokens without padding, and sequences (a packed sample has several)."""
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}
"""Parts that torch.compile and checkpoint_wrapper insert into names of parameters; torch's functions omit them."""


def plain_name(name: str) -> str:
    """The name of a parameter in the bare model, as in checkpoints."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def own_loss(config: object, own: Loss) -> Loss:
    """The model's own loss."""
    return own


def without_counts(values: Mapping[str, Tensor], reductions: Reductions) -> dict[str, Tensor]:
    """The values of a loss without counts."""
    return {name: value for name, value in values.items() if reductions.get(name) != "count"}


def accumulate(
    total: dict[str, Tensor], values: Mapping[str, Tensor], micro_batches: int, reductions: Reductions
) -> None:
    """Add the ``values`` of one of ``micro_batches`` to ``total``, as ``reductions`` say; counts stay integers."""
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
    """The context of a run, for which contributions are built."""

    device: torch.device
    mesh: DeviceMesh | None
    """The axes that the layout named; None without a process group."""
    rank: int
    world_size: int
    local_rank: int
    dp_rank: int
    """The part of each global batch that this rank reads; equal on ranks that share their samples."""
    dp_size: int
    train: Train
    cache: Path
    """Folder on this machine for indices and prepared data."""
    vocabulary: int | None = None
    """Token ids of the model are below this; None: not known."""
    structure: Structure = field(default_factory=Structure)
    """How the model can be sharded."""
    local_dp_ranks: int = 0
    """Data-parallel ranks whose samples this process reads: all of them if it drives all devices of the run, else 1.
    0: as ``together`` says."""
    together: int = field(default=1, repr=False)  # its name until API 2
    engine: Engine | None = None
    """The device and the other ranks; None outside of a run."""

    def __post_init__(self) -> None:
        for name in ("local_dp_ranks", "together"):
            object.__setattr__(self, name, self.local_dp_ranks or self.together)

    @property
    def train_samples(self) -> int:
        """Samples that the whole training schedule consumes."""
        return self.train.steps * self.train.global_batch


class Samples(Protocol):
    """An endless global order of samples, a function of the seed alone; datasets build it."""

    def read(self, split: str, start: int, count: int) -> Batch:
        """Samples ``start`` to ``start + count - 1`` of ``split`` (``"train"`` or ``"valid"``).

        CPU tensors of shape ``[count, ...]``; narrow integers become int64 on the device. ``start`` mostly grows. Calls
        come from one thread at a time, which is not always the main thread.
        """
        ...


class StepDiscarded(Exception):  # not an error: the step is discarded
    """Raised by a :data:`Micro` on all ranks for the same micro batch, to skip the rest of the step."""


StepGivenUp = StepDiscarded  # its name until API 2


class Parallel:
    """A model under its layout: its parameters, state, and how a training step runs.

    Args:
        module: the model; its names are those of the checkpoint.
        replica: a DistributedDataParallel around ``module``, if ranks hold copies of it.
    """

    lag = 0
    """How many micro batches other ranks may be behind when this one begins the next."""

    def __init__(self, module: nn.Module, replica: DistributedDataParallel | None = None) -> None:
        self.module = module
        self.replica = replica
        self.shard_groups: dict[str, tuple[ProcessGroup, ...]] = {}
        """Parameters (by name) that are shards as plain tensors, with the process groups that hold the other shards. A
        DTensor knows its own."""
        self.reductions: Reductions = COUNTED
        """How the values of the loss are reduced."""
        self.structure: Structure | None = None
        """The names by which the layout divided the model, with those that transforms added; None: as ``run`` has
        them."""
        self.compiled = False
        """True if ``torch.compile`` compiles the module."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        earlier.add_both_names(cls, earlier.PARALLEL)

    @property
    def forwards_together(self) -> bool:
        """True if data-parallel ranks may communicate in a forward pass for inference: all must then call it equally
        often. A layout that knows better overrides it."""
        return type(self) is not Parallel

    def parameters(self) -> list[nn.Parameter]:
        """Trainable parameters; tied ones once."""
        return [p for p in self.module.parameters() if p.requires_grad]

    def size(self) -> int:
        """Number of trainable parameters of the whole model; a collective, if processes hold different ones."""
        return sum(parameter.numel() for parameter in self.parameters())

    def frozen_size(self) -> int:
        """Number of parameters of the whole model that are not trained; a collective like :meth:`size`."""
        return sum(parameter.numel() for parameter in self.module.parameters() if not parameter.requires_grad)

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Trainable parameters with their names in checkpoints."""
        every = self.module.named_parameters()
        return [(plain_name(name), p) for name, p in every if p.requires_grad]

    def attach_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Called once with the optimizer of :meth:`parameters`, before its first step."""

    def on_state_loaded(self) -> None:
        """Called once weights and optimizer states have the values that training begins with."""

    def with_placeholders(self, state: dict[str, Any]) -> dict[str, Any]:
        """Add to ``state`` (nested, of this process) meta tensors for those that only other processes hold.

        A collective, if processes hold different parameters.
        """
        return state

    def local_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The part of a loaded ``state`` that belongs to this process; undoes :meth:`with_placeholders`."""
        return state

    def stages(self, name: str) -> tuple[tuple[int, ...], int]:
        """The pipeline stages that hold the parameter or buffer ``name`` (or its optimizer state), and the number of
        stages."""
        return (0,), 1

    @contextmanager
    def gathered(self) -> Iterator[dict[str, Tensor]]:
        """The weights that data-parallel ranks compute with, by name, if each keeps a shard of them between steps; else
        empty. A collective."""
        yield {}

    def loss(self, loss: Loss) -> Loss:
        """The loss function that this process applies to its output: ``loss``, unless another rank computes it."""
        return loss

    def backward(self, batches: Sequence[Batch], micro: Micro) -> dict[str, Tensor]:
        """Accumulate the gradients of the mean loss over ``batches``; ranks reduce them once, after the last batch.

        Returns the values of ``micro``, reduced over this rank's micro batches as ``reductions`` says.

        Raises:
            StepDiscarded: ``micro`` raised it; the gradients are incomplete.
        """
        total: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            with self._reduce(number == len(batches) - 1):
                values = micro(self.replica or self.module, batch, number)
                (values["loss"] / len(batches)).backward()
            accumulate(total, values, len(batches), self.reductions)
        self.complete_gradients()
        return total

    def _reduce(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last or self.replica is None else self.replica.no_sync()

    def discard_step(self) -> None:
        """Drop the gradients of a discarded step; a collective."""
        for parameter in self.parameters():
            parameter.grad = None

    # Their names until API 2.
    follow, settle, with_others = attach_optimizer, on_state_loaded, with_placeholders
    own, give_up = local_state, discard_step

    def complete_gradients(self) -> None:
        """Reduce the gradients of a step over ranks, in place, where the backward pass has not; a collective.

        :meth:`backward` calls it on all ranks after the backward pass of the last micro batch, but not for a discarded
        step. ``p.grad`` of each of :meth:`parameters` has the shape and placement of ``p`` (a plain tensor, a shard as
        a plain tensor, or a DTensor), or is None if no loss depends on ``p``. Before, it is the mean over this rank's
        micro batches; DistributedDataParallel and FSDP have averaged it over the data-parallel ranks already.
        Afterwards, it is that mean over all data-parallel ranks. Clipping and the optimizer follow.

        A layout that reduces gradients in another way overrides it, and calls ``super()`` if its base class has a part
        in it. A layout with a ``backward`` of its own calls it once, at the end. By default, it does nothing.
        """

    @torch.no_grad()
    def evaluate(self, batch: Batch, micro: Micro) -> dict[str, Tensor]:
        """The values of ``micro`` for ``batch``, without dropout and gradients."""
        was_training = self.module.training
        self.module.eval()
        try:
            return {name: value.float() for name, value in micro(self.module, batch, 0).items()}
        finally:
            self.module.train(was_training)

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """A module for inference, which all ranks call together with the same batch."""
        yield self.module

    def norm(self) -> Tensor:
        """The global gradient norm; gradients may be DTensors, plain tensors, or both."""
        return gradients.total_norm([p.grad for p in self.parameters() if p.grad is not None])

    def clip(self, limit: float) -> Tensor:
        """Scale all gradients to a global norm of at most ``limit`` (0: no limit); return the norm before."""
        total = self.norm()
        if limit:
            gradients.clip(self.parameters(), limit, total)
        return total
