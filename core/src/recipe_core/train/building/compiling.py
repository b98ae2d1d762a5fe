"""``torch.compile`` of a model: block by block, or as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from recipe_core.layouts.patterns import matching


def compiles_blocks(module: nn.Module, pattern: str, device: str, options: Mapping[str, Any]) -> bool:
    """True if the submodules whose names match ``pattern`` are compiled, instead of the whole model.

    Blocks are equal, so one graph serves all of them, and compile time does not grow with the number of layers. Devices
    that require whole graphs (``fullgraph``) compile the model. So do CPUs, where BERT's blocks take the positions of
    tokens as arguments and would be recompiled for each batch.
    """
    return device != "cpu" and not options.get("fullgraph") and bool(matching(module, pattern))


def compile_blocks(module: nn.Module, pattern: str, options: Mapping[str, Any]) -> None:
    """Compile the forward of every submodule whose name matches ``pattern`` (``"blocks.*"``, one level per star).

    Call it after the layout, so that the layout's hooks (gathering, sharding) stay outside the graphs. Names and types
    of modules do not change, and neither do checkpoints.
    """
    for block in matching(module, pattern).values():
        block.forward = torch.compile(block.forward, **options)
