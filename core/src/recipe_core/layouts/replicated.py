"""The layouts that replicate the model: one process, and DistributedDataParallel."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from recipe_core.layouts.parallel import Parallel, Run


def single(module: nn.Module, config: object, run: Run) -> Parallel:
    """One process holds the model."""
    return Parallel(module)


def ddp(module: nn.Module, config: object, run: Run) -> Parallel:
    """Every rank holds the whole model and reads its part of the batch; gradients are averaged over ranks."""
    if run.mesh is None or run.dp_size == 1:
        return Parallel(module)
    replica = DistributedDataParallel(
        module,
        process_group=run.mesh["dp"].get_group(),
        gradient_as_bucket_view=True,  # gradients live in the buckets: no second copy of them
    )
    fix_bucket_order(replica)
    return Parallel(module, replica)


def fix_bucket_order(replica: DistributedDataParallel) -> None:
    """Give the first step of a process the buckets of all later steps; a collective.

    DistributedDataParallel reduces the gradients of its first backward pass in one bucket, and later ones in the order
    in which that pass finished them. With three ranks or more, a value's place in its bucket decides in which order the
    ranks' gradients are added up: a resumed run would differ from an uninterrupted one in the last bit. Therefore the
    first pass here runs without a model, and finishes the parameters from the last to the first.
    """
    parameters = [parameter for parameter in replica.module.parameters() if parameter.requires_grad]
    replica.reducer.prepare_for_backward([])
    for parameter in reversed(parameters):
        parameter.backward(torch.zeros_like(parameter))
    for parameter in parameters:
        parameter.grad = None
