"""``torch.compile`` of a model: block by block, or as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from recipe_core.layouts.patterns import matching


def compiles_blocks(module: nn.Module, pattern: str, device: str, options: Mapping[str, Any]) -> bool:
    """True if the submodules whose names match ``pattern`` are compiled, and not the model around them.

    Blocks are equal, so that one graph serves all of them: it is compiled in the time of one block, whatever the
    number of layers. A device that wants whole graphs (``fullgraph``) gets the model. So does a CPU, where blocks of
    BERT take the places of the tokens as arguments and would be compiled again for each batch.
    """
    return device != "cpu" and not options.get("fullgraph") and bool(matching(module, pattern))


def compile_blocks(module: nn.Module, pattern: str, options: Mapping[str, Any]) -> None:
    """Compile the forward of every submodule whose name matches ``pattern`` (``"blocks.*"``, one level per star).

    Called when the layout has done its part: what it hangs on the blocks (gathering, sharding) stays outside the
    graphs. Names and types of modules stay, so that checkpoints are the same with and without.
    """
    for block in matching(module, pattern).values():
        block.forward = torch.compile(block.forward, **options)
