"""The transforms of a run (LoRA, frozen parameters) on a model of transformers, and its weights without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from recipe_core import ConfigError
from recipe_core.checkpoint.lazy import lazy
from recipe_core.checkpoint.match.transforms import merged
from recipe_core.hooks.specs import Structure
from recipe_core.layouts.transformed import Transforms, transform


def adapt(transforms: Transforms, module: nn.Module) -> nn.Module:
    """Apply ``transforms`` to a model of transformers, whose tensors keep their names.

    Raises:
        ConfigError: a transform does not fit the model, or adds weights that it cannot merge into the model's.
        PluginError: the code of a transform fails.
    """
    structure = Structure(model="sequence_classifier")
    for part in transforms:
        before = module.state_dict().keys()
        module, structure = transform((part,), module, structure)
        if module.state_dict().keys() - before and not part.spec.merge:
            raise ConfigError(
                f"train.transforms: {part.spec.name} adds weights and cannot merge them, and this recipe ends with a "
                "folder for from_pretrained; leave it out, or add merge to its plugin"
            )
    return module


def without_transforms(transforms: Transforms, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the weights of the model alone, into which those that ``transforms`` added are merged."""
    if not any(part.spec.merge for part in transforms):
        return dict(weights)
    given = {name: lazy(tensor) for name, tensor in weights.items()}
    plain = merged(transforms, given)
    # tensors without changes stay the same ones, so that transformers saves tied ones once
    return {name: weights[name] if given.get(name) is tensor else tensor.read() for name, tensor in plain.items()}
