"""Comparison of a model's outputs with the weights of two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from recipe_core.checkpoint.lazy import Lazy
from recipe_core.checkpoint.state import weights
from recipe_core.errors import CheckpointError
from recipe_core.hooks.specs import Model, Part, load
from recipe_core.layouts.parallel import Batch

_SMALL = 200_000_000
"""Bytes of a model's weights up to which it is built and run for this."""


def same_outputs(part: Part[Model], before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Run the model of ``part`` on its example with both weights, on the CPU; False if it is too large to run here.

    Args:
        part: the model with its settings; one that names no example is not run.
        before: tensors by the names of the module.
        after: the same, as they were read from what was written.

    Raises:
        CheckpointError: an output differs in any bit.
    """
    model = part.spec
    if not model.example or sum(leaf.nbytes for leaf in before.values() if isinstance(leaf, Lazy)) > _SMALL:
        return False
    module, _ = part.build(part.config)
    batch = load(model.example, f"model {model.name!r}")(part.config)
    one, two = (_outputs(module.eval(), tensors, batch) for tensors in (before, after))
    if not all(x.equal(y) for x, y in zip(one, two, strict=True)):
        raise CheckpointError(
            f"the model {model.name!r} computes something else with the checkpoint that was written. It was removed; "
            "this is a mistake in the format or the adapter: please report it"
        )
    return True


@torch.no_grad()
def _outputs(module: nn.Module, tensors: Mapping[str, Any], batch: Batch) -> list[Tensor]:
    """Everything that ``module`` gives for ``batch`` with these weights."""
    for name, tensor in weights(module).items():
        tensor.copy_(tensors[name].read())
    return tree_leaves(module(batch))
