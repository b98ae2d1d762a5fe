"""Layouts on PyTorch/XLA, which gathers operations into graphs: a sync after each micro batch, none in between."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from recipe_core import Batch, Micro, Parallel, Run, materialise
from recipe_core.checkpoint.lazy import Pieces
from recipe_xla.checkpoint.shards import on_host

if TYPE_CHECKING:
    from recipe_xla.engine import XlaEngine


class Traced(Parallel):
    """A model that is whole on this rank's device; its copies on other ranks get the mean of the gradients.

    The backward pass of each micro batch is one graph, the same for all but the first, so that their number may change.
    The mean over ranks and the optimizer's step are another.
    """

    def __init__(self, module: nn.Module, run: Run) -> None:
        super().__init__(module)
        assert run.engine is not None
        self.run, self.engine = run, cast("XlaEngine", run.engine)
        self.collectives = self.engine.collectives

    def _complete(self) -> None:
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
        """See :class:`Parallel`: a copy on the host, where sequences may grow without a graph for each length."""
        held = [*self.module.parameters(), *self.module.buffers()]
        memo: dict[int, object] = dict(zip(map(id, held), map(_like, on_host(held), held), strict=True))
        for owner in self.module.modules():  # what a layout or recomputation put there belongs to the device
            memo |= {id(value): None for name, value in vars(owner).items() if name == "forward"}
        found = copy.deepcopy(self.module, memo)
        for owner in found.modules():
            vars(owner).pop("forward", None)
        yield found


def _like(found: Tensor | Pieces, tensor: Tensor) -> Tensor:
    host = found.read() if isinstance(found, Pieces) else found
    return nn.Parameter(host, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else host


def replicated(module: nn.Module, run: Run) -> Parallel:
    """``module``, with or without its values, whole on this rank's device; tied parameters stay tied."""
    materialise(module, run.device)
    return Traced(module, run)


def build(module: nn.Module, config: object, run: Run) -> Parallel:
    """The layouts ``single`` and ``ddp``."""
    return replicated(module, run)
