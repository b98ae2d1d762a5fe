"""Communication of tensors on an XLA device between ranks: the only way there is.

Neuron and TPU exchange them on the device. On XLA's CPU each process is a world of its own: ``xm.all_reduce`` gives
back what it got, ``xm.rendezvous`` waits for nobody, and gloo changes a copy of an XLA tensor and says nothing. There
the values go over the host, and PyTorch's own collectives refuse an XLA tensor (:func:`refuse_raw_collectives`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from recipe_xla.mesh import Group

_OPERATIONS = (
    "allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_",
    "allgather_into_tensor_coalesced_", "allgather_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "send", "recv_",
    "recv_any_source_",
)  # fmt: skip
_kept: list[torch.library.Library] = []
"""A library's kernels live as long as it does."""


class Collectives(Protocol):
    """One rank's way to the others."""

    def sync(self) -> None:
        """Have the device compute what was asked of it so far, as one graph."""
        ...

    def mean(self, tensor: Tensor, group: Group | None) -> Tensor:
        """Mean over the ranks of ``group`` (None: over this one alone), on ``tensor``'s device, in its type.

        All of these ranks call it.
        """
        ...


class OneProcess:
    """A process that has nobody to talk to: one device, or all devices of a run under SPMD."""

    def sync(self) -> None:
        """See :class:`Collectives`."""
        import torch_xla

        torch_xla.sync()

    def mean(self, tensor: Tensor, group: Group | None) -> Tensor:
        """See :class:`Collectives`."""
        return tensor.detach().clone()


class OverHost(OneProcess):
    """Values are copied to the host, exchanged by gloo, and copied back."""

    def mean(self, tensor: Tensor, group: Group | None) -> Tensor:
        """See :class:`Collectives`."""
        if group is None or group.size() == 1:
            return super().mean(tensor, group)
        total = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group.host)
        return total.div_(group.size()).to(tensor.device)


class OnDevices(OverHost):
    """Values stay on the devices (Neuron, TPU); those of the host go over gloo."""

    def mean(self, tensor: Tensor, group: Group | None) -> Tensor:
        """See :class:`Collectives`."""
        if group is None or tensor.device.type != "xla":
            return super().mean(tensor, group)
        from torch_xla.core import xla_model as xm

        groups = [list(ranks) for ranks in group.every]
        mean: Tensor = xm.all_reduce(xm.REDUCE_SUM, tensor.detach().clone(), scale=1.0 / group.size(), groups=groups)
        return mean


def average_gradients(parameters: Iterable[nn.Parameter], by: Collectives, group: Group, bucket: int) -> None:
    """Make every gradient the mean over the ranks of ``group``, which all have gradients of the same parameters.

    Args:
        parameters: in the model's order.
        by: exchanges them.
        group: the ranks that hold copies.
        bucket: bytes that are exchanged at once, as one flat tensor; 0: all of one type.
    """
    for some in _buckets([p for p in parameters if p.grad is not None], bucket):
        gradients = [p.grad for p in some if p.grad is not None]
        flat = by.mean(torch.cat([gradient.flatten() for gradient in gradients]), group)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for parameter, part in zip(some, parts, strict=True):
            parameter.grad = part.view(parameter.shape)


def _buckets(parameters: list[nn.Parameter], limit: int) -> list[list[nn.Parameter]]:
    found: list[list[nn.Parameter]] = []
    size = 0
    for parameter in parameters:
        full = limit and size + parameter.nbytes > limit
        if not found or full or found[-1][0].dtype != parameter.dtype:
            found.append([])
            size = 0
        found[-1].append(parameter)
        size += parameter.nbytes
    return found


def refuse_raw_collectives() -> None:
    """From now on, PyTorch's own collectives raise for an XLA tensor instead of returning what nobody reduced."""
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
