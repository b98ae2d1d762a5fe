"""Settings of the engine xla and of the checkpoint formats nxd and xser. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recipe_core import too_small


@dataclass(frozen=True, kw_only=True)
class XlaSettings:
    """PyTorch/XLA, on the device that ``PJRT_DEVICE`` names (``CPU``, ``NEURON``, ``TPU``)."""

    bucket_mb: float = 25.0
    """Megabytes (2^20 bytes) of gradients that ranks reduce at once; 0: all of them."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 0, "bucket_mb"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class NxdSettings:
    """A folder for neuronx-distributed."""

    tp: int = 1
    """Tensor-parallel ranks that read the checkpoint."""
    pp: int = 1
    """Pipeline stages that read the checkpoint."""
    layout: Literal["new", "old"] = "new"
    """``new``: ``step_<N>/model`` and ``step_<N>/optim`` with a file for each rank, as ``nxd.save_checkpoint`` writes
    them; ``old``: ``tp_rank_<T>_pp_rank_<P>``, as ``parallel_layers.checkpointing.save`` does. Both are read."""
    xser: bool = False
    """Write each tensor to a file of its own, as torch_xla's serialization does."""
    writers: int = 1
    """Rank files to write at once; each keeps one tensor in memory."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "tp", "pp", "writers"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class XserSettings:
    """Files of torch_xla's serialization."""

    tp: int = 1
    """Tensor-parallel ranks that read the checkpoint; more than one makes a file for each."""
    pp: int = 1
    """Pipeline stages that read the checkpoint."""
    writers: int = 1
    """Rank files to write at once; each keeps one tensor in memory."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "tp", "pp", "writers"):
            raise ValueError("\n".join(problems))
