"""Settings of the checkpoint formats that consist of one file for each rank. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recipe_core.hooks.train import too_small


@dataclass(frozen=True, kw_only=True)
class MegatronSettings:
    """A folder for Megatron-LM."""

    tp: int = 1
    """Tensor-parallel ranks that it is written for."""
    pp: int = 1
    """Pipeline stages that it is written for."""
    names: Literal["core", "legacy"] = "core"
    """Names of the tensors: megatron-core's, or those of before it (``--use-legacy-models``). Both are read."""
    vocabulary_multiple: int = 128
    """The rows of the vocabulary are padded with zeros to a multiple of this times ``tp``, as Megatron expects it
    (``--make-vocab-size-divisible-by``); 1: not at all. Padding is taken off again where the model's size is known."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "tp", "pp", "vocabulary_multiple"):
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
