"""How a model is divided: names of its submodules, and numbers of shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Pipeline stages of a model: consecutive blocks in each, and further submodules in the first, in the last, and
    between blocks.

    A stage is the same module, with None instead of submodules that it does not have. The first is called as the
    model is; the others as ``module(batch, hidden)`` with what the stage before returned.
    """

    first: tuple[str, ...]
    """Submodules of the first stage (embeddings)."""
    last: tuple[str, ...]
    """Submodules of the last stage (norm, output). Both hold one that is also in the first (a tied output)."""
    between: Mapping[str, str] = field(default_factory=dict)
    """Submodules between two blocks (a norm, a downsampling, the bridge of an encoder-decoder), each with the block
    that it follows, ``{"bridge": "blocks.3"}``: the stage of that block holds it, and calls it after the block. Stages
    may then return tensors of different shapes."""


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Names of the submodules by which layouts divide a model."""

    model: str = ""
    """The model's name, for messages."""
    blocks: str = ""
    """See :class:`Model`."""
    plan: Mapping[str, str] = field(default_factory=dict)
    """Tensor plan: pattern of submodules -> role."""
    stages: Stages | None = None


@dataclass(frozen=True, kw_only=True)
class Division:
    """Number of shards into which a layout divides the memory of a single process; for estimates."""

    pipeline: int = 1
    """Blocks."""
    tensor: int = 1
    """Parameters and activations that the tensor plan cuts, and logits."""
    sequence: bool = False
    """``tensor`` also cuts the other activations."""
    weights: int = 1
    """Weights, in addition to the above."""
    gradients: int = 1
    optimizer: int = 1
    on_host: bool = False
    """Weights, gradients and optimizer states are in the host's memory."""
