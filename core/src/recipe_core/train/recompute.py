"""Activation checkpointing of the submodules that a model names."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from recipe_core.errors import ConfigError
from recipe_core.layouts.patterns import matching


def recompute(module: nn.Module, pattern: str, device: str = "cpu") -> None:
    """Have every submodule whose name matches ``pattern`` (``"blocks.*"``, one level per star) run twice.

    Its forward keeps only its inputs and is repeated in backward, with the same random numbers. Names and types of
    modules stay, so that checkpoints are the same with and without. ``device`` is the type of the module's: on ``xla``
    a barrier keeps the compiler from finding that both times give the same, and so computing them once.

    Raises:
        ConfigError: the model names no blocks, or none of that name exists.
    """
    found = matching(module, pattern)
    if not found:
        raise ConfigError(
            f"train.activation_checkpointing: this model has no blocks to recompute (its pattern: {pattern!r}); "
            "set it to false"
        )
    for block in found.values():
        if device == "xla":
            from torch_xla.utils.checkpoint import checkpoint as with_barrier

            block.forward = partial(with_barrier, block.forward, use_reentrant=True)
        else:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
