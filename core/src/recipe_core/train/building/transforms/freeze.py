"""The transform ``freeze``: parameters that are not trained."""

from __future__ import annotations

from torch import nn

from recipe_core.hooks.specs import Structure
from recipe_core.train.building.transforms.names import parameters_of
from recipe_core.train.building.transforms.settings import Freeze


def freeze(config: Freeze, module: nn.Module, structure: Structure) -> nn.Module:
    """Freeze the parameters that ``config`` names; a tied parameter is frozen under all its names.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    trained = set(parameters_of(module, config.trained, "transform.freeze.trained"))
    for parameter in parameters_of(module, config.modules, "transform.freeze.modules"):
        if parameter not in trained:
            parameter.requires_grad_(False)
    return module
