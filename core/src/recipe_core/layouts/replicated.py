"""The layouts that the core brings: one process, and data parallel."""

from __future__ import annotations

import torch
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
    settle_buckets(replica)
    return Parallel(module, replica)


def settle_buckets(replica: DistributedDataParallel) -> None:
    """Give the first step of a process the buckets of all later ones; a collective.

    DistributedDataParallel exchanges the gradients of its first backward pass in one bucket, and later ones in the
    order in which that pass finished them. With three ranks or more, a value's place in its bucket decides in which
    order the ranks' gradients are added up: a run that continued would depart from the uninterrupted one by a last bit.
    So the first pass is one without a model, which finishes the parameters from the last to the first.
    """
    parameters = [parameter for parameter in replica.module.parameters() if parameter.requires_grad]
    replica.reducer.prepare_for_backward([])
    for parameter in reversed(parameters):
        parameter.backward(torch.zeros_like(parameter))
    for parameter in parameters:
        parameter.grad = None
