"""What a part may know about its run, what a dataset gives, and a model after its layout was applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from recipe_core.specs import Train

Batch = dict[str, Tensor]
Loss = Callable[[Any, Batch], Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a contribution may know about the run that it is built for."""

    device: torch.device
    mesh: DeviceMesh | None
    """The axes that the layout named; None where no process group exists."""
    rank: int
    world_size: int
    local_rank: int
    dp_rank: int
    """Which part of each global batch is this rank's; equal for ranks that share their samples."""
    dp_size: int
    train: Train
    cache: Path
    """Folder on this machine for indices and prepared data."""

    @property
    def train_samples(self) -> int:
        """Samples that the whole schedule consumes."""
        return self.train.steps * self.train.global_batch


class Samples(Protocol):
    """What a dataset builds: an endless global order of samples, a function of the seed alone."""

    def read(self, split: str, start: int, count: int) -> Batch:
        """Samples ``start`` to ``start + count - 1`` of ``split`` (``"train"`` or ``"valid"``).

        CPU tensors of shape ``[count, ...]``. Mostly called with growing ``start``, from one thread at a time, which
        is not always the main thread.
        """
        ...
