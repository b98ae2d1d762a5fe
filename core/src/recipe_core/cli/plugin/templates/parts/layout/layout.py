"""The layout: what differs from a run in one process."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from recipe_core import Parallel, Run
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from recipe_new_plugin.plugin import Averaged


class AveragedGradients(Parallel):
    """Replicas of the model, whose gradients are averaged after the last micro batch of a step."""

    def __init__(self, module: nn.Module, config: Averaged, group: ProcessGroup) -> None:
        super().__init__(module)
        self.group, self.bucket_bytes = group, config.bucket_mb * 1e6

    @torch.no_grad()
    def complete_gradients(self) -> None:
        """Average the gradients over the ranks; called once a step, after the last micro batch."""
        for bucket in self._buckets():
            joined = torch.cat([gradient.flatten() for gradient in bucket])
            dist.all_reduce(joined, group=self.group)
            joined /= self.group.size()
            for gradient, mean in zip(bucket, joined.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(mean.view_as(gradient))

    def _buckets(self) -> Iterator[list[Tensor]]:
        """Buckets of gradients of one dtype, in the order of the parameters."""
        bucket: list[Tensor] = []
        for gradient in [p.grad for p in self.parameters() if p.grad is not None]:
            if bucket and (
                sum(g.nbytes for g in bucket) >= self.bucket_bytes or gradient.dtype != bucket[0].dtype
            ):
                yield bucket
                bucket = []
            bucket.append(gradient)
        if bucket:
            yield bucket


def build(module: nn.Module, config: Averaged, run: Run) -> Parallel:
    """Wrap ``module``, which is on ``run.device`` and has the same values on every rank."""
    if run.mesh is None or run.dp_size == 1:
        return Parallel(module)
    return AveragedGradients(module, config, run.mesh["dp"].get_group())
