"""Communication of tensors on an XLA device between ranks.

Neuron and TPU exchange them on the device. XLA's CPU does not connect processes: ``xm.all_reduce`` returns its input,
``xm.rendezvous`` does not wait, and gloo silently changes a copy of an XLA tensor. There, values are exchanged on the
host, and PyTorch's own collectives refuse an XLA tensor (:func:`refuse_raw_collectives`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recipe_xla.mesh import DeviceGroup

_OPERATIONS = (
    "allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_",
    "allgather_into_tensor_coalesced_", "allgather_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "send", "recv_",
    "recv_any_source_",
)  # fmt: skip
_kept: list[torch.library.Library] = []
"""Kernels live as long as their library."""


class Collectives(Protocol):
    """Communication of one rank with the others."""

    def sync(self) -> None:
        """Run the operations traced so far, as one graph."""
        ...

    def mean(self, tensor: Tensor, group: DeviceGroup | None) -> Tensor:
        """Mean over the ranks of ``group`` (None: this rank alone), on ``tensor``'s device, in its dtype.

        All of these ranks call it.
        """
        ...


class SingleProcessCollectives:
    """A single process: one device, or all devices of a run under SPMD."""

    def sync(self) -> None:
        """See :class:`Collectives`."""
        import torch_xla

        torch_xla.sync()

    def mean(self, tensor: Tensor, group: DeviceGroup | None) -> Tensor:
        """See :class:`Collectives`."""
        return tensor.detach().clone()


class HostCollectives(SingleProcessCollectives):
    """Copies values to the host, reduces them by gloo, and copies them back."""

    def mean(self, tensor: Tensor, group: DeviceGroup | None) -> Tensor:
        """See :class:`Collectives`."""
        if group is None or group.size() == 1:
            return super().mean(tensor, group)
        total = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group.host)
        return total.div_(group.size()).to(tensor.device)


class DeviceCollectives(HostCollectives):
    """Reduces values on the devices (Neuron, TPU); those on the host by gloo."""

    def mean(self, tensor: Tensor, group: DeviceGroup | None) -> Tensor:
        """See :class:`Collectives`."""
        if group is None or tensor.device.type != "xla":
            return super().mean(tensor, group)
        from torch_xla.core import xla_model as xm

        groups = [list(ranks) for ranks in group.every]
        mean: Tensor = xm.all_reduce(xm.REDUCE_SUM, tensor.detach().clone(), scale=1.0 / group.size(), groups=groups)
        return mean


def average_gradients(parameters: Iterable[nn.Parameter], by: Collectives, group: DeviceGroup, bucket: int) -> None:
    """Average every gradient over the ranks of ``group``, which all have gradients of the same parameters.

    Args:
        parameters: in the model's order.
        by: the collectives.
        group: the ranks that hold copies.
        bucket: bytes of a bucket, one flat tensor; 0: all of one dtype.
    """
    for members in _buckets([p for p in parameters if p.grad is not None], bucket):
        gradients = [p.grad for p in members if p.grad is not None]
        flat = by.mean(torch.cat([gradient.flatten() for gradient in gradients]), group)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(members, parts, strict=True):
            parameter.grad = part.view(parameter.shape)


def _buckets(parameters: list[nn.Parameter], limit: int) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        full = limit and size + parameter.nbytes > limit
        if not buckets or full or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter.nbytes
    return buckets


def refuse_raw_collectives() -> None:
    """Make PyTorch's own collectives raise for XLA tensors, which they would return without a reduction."""
    if _kept:
        return
    library = torch.library.Library("c10d", "IMPL")
    for name in _OPERATIONS:
        if hasattr(torch.ops.c10d, name):  # not every release has all of them
            library.impl(name, _refusal(name), "XLA")
    _kept.append(library)


def _refusal(name: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"c10d::{name} was given an XLA tensor, and gloo would give it back as it was; "
            "go through recipe_xla.collectives.Collectives"
        )

    return refuse
