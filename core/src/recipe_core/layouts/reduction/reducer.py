"""Averaging of gradients over ranks that hold copies of a model, overlapped with the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.launch.watch.heartbeat import beat

BUCKET = 25 << 20
"""Bytes of a bucket, as DistributedDataParallel's default: enough to keep the network busy."""


class Reducer:
    """DistributedDataParallel's reduction, for parameters that may be DTensors of another mesh axis.

    Buckets hold parameters from the last to the first, about the order in which backward finishes them. All ranks
    reduce the buckets in this order.

    Args:
        parameters: in the model's order, the same on all ranks of ``group``.
        group: the ranks that hold copies of the model.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], group: ProcessGroup) -> None:
        self._group = group
        self._buckets = list(_buckets(list(parameters)[::-1]))
        self._left: list[int] = []
        """Gradients of each bucket that are not ready yet; empty while gradients are only accumulated."""
        self._started: list[tuple[Tensor, dist.Work]] = []
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, number))

    def arm(self) -> None:
        """Reduce each bucket as soon as its gradients are ready: the coming backward pass is the last of the step."""
        self._left = [len(bucket) for bucket in self._buckets]

    def finish(self) -> None:
        """Reduce the remaining buckets, and wait until every gradient is the mean over the ranks."""
        self._left = []
        self._start(len(self._buckets))
        for bucket, (flat, work) in zip(self._buckets, self._started, strict=True):
            with beat.waiting("exchange of gradients"):
                work.wait()
            offset = 0
            for parameter in bucket:
                size = local_shard(parameter).numel()
                _store_mean(parameter, flat[offset : offset + size])
                offset += size
        self._started = []

    def _ready(self, number: int, parameter: nn.Parameter) -> None:
        if self._left:
            self._left[number] -= 1
            done = next((i for i, left in enumerate(self._left) if left > 0), len(self._left))
            self._start(done)

    def _start(self, end: int) -> None:
        for bucket in self._buckets[len(self._started) : end]:
            parts = [local_shard(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in bucket]
            flat = torch.cat(parts).div_(dist.get_world_size(self._group))
            work = dist.all_reduce(flat, group=self._group, async_op=True)
            assert work is not None  # since this rank is in the group
            self._started.append((flat, work))


def sum_gradients(parameters: Sequence[nn.Parameter], group: ProcessGroup) -> None:
    """Sum every gradient over the ranks of ``group``, which hold the same parameters, with one all-reduce per dtype.

    A gradient that a rank did not compute counts as zero; one that no rank computed stays None.
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


def _store_mean(parameter: nn.Parameter, mean: Tensor) -> None:
    if parameter.grad is None:
        if not mean.any():
            return  # no rank has one: the optimizer skips such a parameter
        parameter.grad = torch.zeros_like(parameter)
    gradient = local_shard(parameter.grad)
    gradient.copy_(mean.view_as(gradient))


def local_shard(tensor: Tensor) -> Tensor:
    """The local shard of ``tensor`` (a plain tensor's is all of it); it shares the memory."""
    detached = tensor.detach()
    return detached.to_local() if is_dtensor(detached) else detached
