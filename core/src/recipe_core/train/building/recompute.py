"""Activation checkpointing of the submodules that a model names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from recipe_core.engine.native import recomputed
from recipe_core.errors import ConfigError
from recipe_core.layouts.patterns import matching

Forward = Callable[..., Any]


def recompute(module: nn.Module, pattern: str, wrap: Callable[[Forward], Forward] = recomputed) -> None:
    """Checkpoint the activations of every submodule whose name matches ``pattern`` (``"blocks.*"``, one level per
    star).

    Its forward keeps only its inputs and is repeated in backward, with the same random numbers. Names and types of
    modules do not change, and neither do checkpoints.

    ``wrap`` makes such a forward, see :meth:`recipe_core.engine.protocol.Engine.recompute`.

    Raises:
        ConfigError: the model names no blocks, or none of that name exists.
    """
    blocks = matching(module, pattern)
    if not blocks:
        raise ConfigError(
            f"train.activation_checkpointing: this model has no blocks to recompute (its pattern: {pattern!r}); "
            "set it to false"
        )
    for block in blocks.values():
        block.forward = wrap(block.forward)
