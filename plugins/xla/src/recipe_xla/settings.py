"""Settings of the engine xla and of the checkpoint formats nxd and xser. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recipe_core import too_small


@dataclass(frozen=True, kw_only=True)
class XlaSettings:
    """PyTorch/XLA, on the device that ``PJRT_DEVICE`` names (``CPU``, ``NEURON``, ``TPU``)."""

    bucket_mb: float = 25.0
    """Megabytes (2^20 bytes) of gradients that are exchanged at once between ranks; 0: all of them."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 0, "bucket_mb"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class NxdSettings:
    """A folder for neuronx-distributed."""

    tp: int = 1
    """Tensor-parallel ranks that it is written for."""
    pp: int = 1
    """Pipeline stages that it is written for."""
    layout: Literal["new", "old"] = "new"
    """``new``: ``step_<N>/model`` and ``step_<N>/optim`` with a file for each rank, as ``nxd.save_checkpoint`` writes
    them; ``old``: ``tp_rank_<T>_pp_rank_<P>``, as ``parallel_layers.checkpointing.save`` does. Both are read."""
    xser: bool = False
    """Each tensor in a file of its own, as torch_xla's serialization has it."""
    writers: int = 1
    """Ranks whose files are written at once; each keeps one tensor in memory."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "tp", "pp", "writers"):
            raise ValueError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class XserSettings:
    """Files of torch_xla's serialization."""

    tp: int = 1
    """Tensor-parallel ranks that it is written for; more than one makes a file for each."""
    pp: int = 1
    """Pipeline stages that it is written for."""
    writers: int = 1
    """Ranks whose files are written at once; each keeps one tensor in memory."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "tp", "pp", "writers"):
            raise ValueError("\n".join(problems))
