"""Replicated models on PyTorch/XLA, which traces operations into graphs: one sync after each micro batch, none
within."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from recipe_core import Batch, Micro, Parallel, Run, materialise
from recipe_core.checkpoint.lazy import ShardedTensorView
from recipe_xla.checkpoint.shards import on_host

if TYPE_CHECKING:
    from recipe_xla.engine import XlaEngine


class XlaParallel(Parallel):
    """A model replicated on the ranks' devices; gradients are averaged over ranks.

    The backward pass of each micro batch is one graph, the same for all but the first, so that the number of micro
    batches may change. The average over ranks and the optimizer's step are another graph.
    """

    def __init__(self, module: nn.Module, run: Run) -> None:
        super().__init__(module)
        assert run.engine is not None
        self.run, self.engine = run, cast("XlaEngine", run.engine)
        self.collectives = self.engine.collectives

    def complete_gradients(self) -> None:
        """See :class:`Parallel`."""
        self.collectives.sync()
        if self.run.mesh is not None and self.run.dp_size > 1:
            self.engine.average_gradients(self.parameters(), self.run.mesh["dp"].get_group())

    @torch.no_grad()
    def evaluate(self, batch: Batch, micro: Micro) -> dict[str, Tensor]:
        """See :class:`Parallel`."""
        values = super().evaluate(batch, micro)
        self.collectives.sync()
        return values

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """See :class:`Parallel`; a copy on the host, where sequences can grow without a new graph for each length."""
        held = [*self.module.parameters(), *self.module.buffers()]
        memo: dict[int, object] = dict(zip(map(id, held), map(_like, on_host(held), held), strict=True))
        for owner in self.module.modules():  # forwards that a layout or recomputation set belong to the device
            memo |= {id(value): None for name, value in vars(owner).items() if name == "forward"}
        host_copy = copy.deepcopy(self.module, memo)
        for owner in host_copy.modules():
            vars(owner).pop("forward", None)
        yield host_copy


def _like(copied: Tensor | ShardedTensorView, tensor: Tensor) -> Tensor:
    host = copied.read() if isinstance(copied, ShardedTensorView) else copied
    return nn.Parameter(host, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else host


def replicated(module: nn.Module, run: Run) -> Parallel:
    """``module``, which may be on the meta device, on this rank's device; tied parameters stay tied."""
    materialise(module, run.device)
    return XlaParallel(module, run)


def build(module: nn.Module, config: object, run: Run) -> Parallel:
    """The layouts ``single`` and ``ddp``."""
    return replicated(module, run)
