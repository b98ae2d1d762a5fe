"""Convert checkpoints and read all of their content."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def convert(*words: str | Path) -> int:
    """Run ``recipe convert`` in this process; return its exit code."""
    from recipe_core.cli.main import main

    return main(["convert", *map(str, words)])


def tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint of whole tensors (dcp, single), weights and optimizer states, by path."""
    from recipe_core.checkpoint.lazy import Lazy
    from recipe_core.checkpoint.locate import find
    from recipe_core.hooks.registry import load
    from recipe_core.settings.fill import flat

    state = find(load(), path).open()
    return {name: leaf.read() for name, leaf in flat(state) if isinstance(leaf, Lazy)}


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """True if two results of :func:`tensors` agree to the last bit."""
    from recipe_core.checkpoint.lazy import same_bits

    return bool(one) and one.keys() == two.keys() and all(same_bits(tensor, two[n]) for n, tensor in one.items())
