"""Batches on their way to an XLA device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from recipe_core.parallel import Batch


class XlaCarrier:
    """Brings batches to the device by threads of torch_xla; see :class:`recipe_core.parallel.Carrier`.

    Args:
        device: where to.
        mesh: of several devices (``torch_xla.distributed.spmd.Mesh``), over whose axis ``dp`` samples are shared out.
    """

    def __init__(self, device: torch.device, mesh: Any) -> None:
        self._device = device
        self._sharding = None if mesh is None else _BySample(mesh)
        self._loader: Any = None

    def stream(self, batches: Iterator[Batch], ahead: int) -> Iterator[Batch]:
        """See :class:`recipe_core.parallel.Carrier`. Asking for the next one syncs what came before."""
        from torch_xla.distributed.parallel_loader import ParallelLoader

        self.close()
        # What MpDeviceLoader makes of itself when it is walked through; this one can be closed.
        self._loader = ParallelLoader(
            batches, [self._device], loader_prefetch_size=ahead, device_prefetch_size=ahead,
            input_sharding=self._sharding,
        )  # fmt: skip
        found: Iterator[Batch] = self._loader.per_device_loader(self._device)
        return found

    def place(self, batch: Batch) -> Batch:
        """See :class:`recipe_core.parallel.Carrier`."""
        from torch_xla.core import xla_model as xm

        placed: list[Batch] = xm.send_cpu_data_to_device([batch], self._device, self._sharding)
        return placed[0]

    def close(self) -> None:
        """See :class:`recipe_core.parallel.Carrier`."""
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.close()


class _BySample:
    """What torch_xla asks about each tensor it is to place: it is shared out along its first dimension."""

    minibatch = False
    """It is all there: no other process has more of it."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._specs: dict[int, Any] = {}

    def xla_spec(self, tensor: Tensor) -> Any:
        """The sharding of ``tensor``."""
        from torch_xla.distributed.spmd import ShardingSpec

        if tensor.ndim not in self._specs:
            self._specs[tensor.ndim] = ShardingSpec(self._mesh, ("dp", *[None] * (tensor.ndim - 1)))
        return self._specs[tensor.ndim].xla_spec(tensor)
