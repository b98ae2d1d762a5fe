"""The layouts that the core brings: one process, and data parallel."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from recipe_core.layouts.parallel import Parallel, Run


def single(module: nn.Module, config: object, run: Run) -> Parallel:
    """One process holds the model."""
    return Parallel(module)


def ddp(module: nn.Module, config: object, run: Run) -> Parallel:
    """Every rank holds the whole model and its part of the batch; gradients are averaged over ranks."""
    if run.mesh is None or run.dp_size == 1:
        return Parallel(module)
    replica = DistributedDataParallel(
        module,
        process_group=run.mesh["dp"].get_group(),
        gradient_as_bucket_view=True,  # gradients live in the buckets: no second copy of them
    )
    return Parallel(module, replica)
