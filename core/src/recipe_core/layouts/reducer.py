"""Gradients averaged over the ranks that hold copies of a model, while backward still computes others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from recipe_core.launch.watch.heartbeat import beat

BUCKET = 25 << 20
"""Bytes that are exchanged at once, as DistributedDataParallel does it: enough for the network to be busy."""


class Reducer:
    """DistributedDataParallel's reduction, for parameters that may be DTensors of another mesh axis.

    Parameters are put into buckets from the last to the first, about the order in which backward finishes them. All
    ranks exchange the buckets in this order.

    Args:
        parameters: in the model's order, the same on all ranks of ``group``.
        group: the ranks that hold copies.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
        self._group = group
        self._buckets = list(_buckets(list(parameters)[::-1]))
        self._left: list[int] = []
        """Of each bucket, how many gradients are not ready; empty while gradients are only accumulated."""
        self._started: list[tuple[Tensor, dist.Work]] = []
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, number))

    def arm(self) -> None:
        """The backward pass that comes is the last of the step: exchange each bucket when its gradients are ready."""
        self._left = [len(bucket) for bucket in self._buckets]

    def finish(self) -> None:
        """Exchange what is left, and wait until every gradient is the mean over the ranks."""
        self._left = []
        self._start(len(self._buckets))
        for bucket, (flat, work) in zip(self._buckets, self._started, strict=True):
            with beat.waiting("exchange of gradients"):
                work.wait()
            offset = 0
            for parameter in bucket:
                size = local_shard(parameter).numel()
                _take(parameter, flat[offset : offset + size])
                offset += size
        self._started = []

    def _ready(self, number: int, parameter: nn.Parameter) -> None:
        if self._left:
            self._left[number] -= 1
            done = next((i for i, left in enumerate(self._left) if left > 0), len(self._left))
            self._start(done)

    def _start(self, end: int) -> None:
        """Begin to exchange the buckets before ``end`` that are not under way."""
        for bucket in self._buckets[len(self._started) : end]:
            parts = [local_shard(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in bucket]
            flat = torch.cat(parts).div_(dist.get_world_size(self._group))
            work = dist.all_reduce(flat, group=self._group, async_op=True)
            assert work is not None  # since this rank is in the group
            self._started.append((flat, work))


def add_up(parameters: Sequence[nn.Parameter], group: ProcessGroup) -> None:
    """Make every gradient the sum over the ranks of ``group``, which hold the same parameters, in one exchange a type.

    One that a rank did not compute counts as zero there; where no rank has one, there is none afterwards.
    """
    for dtype in dict.fromkeys(parameter.dtype for parameter in parameters):  # in the same order on all ranks
        some = [parameter for parameter in parameters if parameter.dtype == dtype]
        parts = [local_shard(p if p.grad is None else p.grad).flatten() for p in some]
        parts = [torch.zeros_like(part) if p.grad is None else part for p, part in zip(some, parts, strict=True)]
        counts = parts[0].new_tensor([p.grad is not None for p in some])
        flat = torch.cat([*parts, counts])
        dist.all_reduce(flat, group=group)
        *totals, counts = flat.split([part.numel() for part in parts] + [len(some)])
        for number, (parameter, total) in enumerate(zip(some, totals, strict=True)):
            if parameter.grad is None and counts[number] > 0:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                gradient = local_shard(parameter.grad)
                gradient.copy_(total.view_as(gradient))


def _buckets(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Runs of parameters of one type, each of about BUCKET bytes."""
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        local = local_shard(parameter)
        if bucket and (size + local.nbytes > BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += local.nbytes
    if bucket:
        yield bucket


def _take(parameter: nn.Parameter, mean: Tensor) -> None:
    if parameter.grad is None:
        if not mean.any():
            return  # no rank has one: the optimizer leaves such a parameter alone
        parameter.grad = torch.zeros_like(parameter)
    gradient = local_shard(parameter.grad)
    gradient.copy_(mean.view_as(gradient))


def local_shard(tensor: Tensor) -> Tensor:
    """The local shard of ``tensor``: all of a plain tensor. It shares the memory."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached
