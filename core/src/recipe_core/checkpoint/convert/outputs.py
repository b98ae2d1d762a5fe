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
from recipe_core.layouts.transformed import Transforms, build_transformed

_SMALL = 200_000_000
"""Largest size of the weights, in bytes, for which the model is built and run."""


def same_outputs(
    part: Part[Model], before: Mapping[str, Any], after: Mapping[str, Any], transforms: Transforms = ()
) -> bool:
    """Compare the model's outputs on its example input with both weights, on the CPU; False if it is too large to run.

    Args:
        part: the model with its settings; it is not run if it names no example.
        before: tensors by the names of the module.
        after: the same, read from the converted checkpoint.
        transforms: those of the model.

    Raises:
        CheckpointError: an output differs in any bit.
    """
    model = part.spec
    if not model.example or sum(leaf.nbytes for leaf in before.values() if isinstance(leaf, Lazy)) > _SMALL:
        return False
    module, _ = build_transformed(part, transforms)
    batch = load(model.example, f"model {model.name!r}")(part.config)
    expected, actual = (_outputs(module.eval(), tensors, batch) for tensors in (before, after))
    if not all(x.equal(y) for x, y in zip(expected, actual, strict=True)):
        raise CheckpointError(
            f"the model {model.name!r} computes something else with the checkpoint that was written. It was removed; "
            "this is a mistake in the format or the adapter: please report it"
        )
    return True


@torch.no_grad()
def _outputs(module: nn.Module, tensors: Mapping[str, Any], batch: Batch) -> list[Tensor]:
    for name, tensor in weights(module).items():
        tensor.copy_(tensors[name].read())
    return tree_leaves(module(batch))
