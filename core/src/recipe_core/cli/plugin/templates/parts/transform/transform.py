"""The transform, after (IA)^3 of Liu and others, 2022: https://arxiv.org/abs/2205.05638."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from recipe_core import ConfigError, Lazy, Structure, did_you_mean
from torch import Tensor, nn

from recipe_new_plugin.plugin import Scaled

FACTOR = "output_factor"
"""The name of the new parameter, beside ``weight`` and ``bias``."""


class ScaledLinear(nn.Linear):
    """``factor * (W x) + b``."""

    output_factor: nn.Parameter
    # Dimension of the new parameter that each role of a tensor plan shards. A role without one replicates it.
    role_cuts: Mapping[str, Mapping[str, int]] = {"column": {FACTOR: 0}, "row": {}}

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` [..., in] to [..., out]."""
        output = self.product(x)
        return output if self.bias is None else output + self.bias

    def product(self, x: Tensor) -> Tensor:
        """Return the output without the bias, which tensor parallelism adds once, after its sum over ranks."""
        return F.linear(x, self.weight) * self.output_factor

    def initial_value(self, name: str, shape: torch.Size) -> Tensor | None:
        """Return the value of a parameter in a model that was built without values; None: the model's own."""
        return torch.ones(shape, device="cpu") if name.endswith(f".{FACTOR}") else None


def scaled(config: Scaled, module: nn.Module, structure: Structure) -> nn.Module:
    """Freeze the model and give linear layers a factor; the names and shapes of its parameters stay.

    ``structure`` names the repeated blocks and the tensor plan. ``module`` may be on the meta device.
    """
    layers = chosen(config, module)
    module.requires_grad_(False)
    for layer in layers:
        layer.__class__ = ScaledLinear
        layer.output_factor = nn.Parameter(torch.ones_like(layer.weight[:, 0]))
    return module


def chosen(config: Scaled, module: nn.Module) -> list[nn.Linear]:
    """Return the layers that the settings name."""
    uses = Counter(id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False))
    # A weight that another layer shares would have the factor in one place only.
    known = {
        name: layer
        for name, layer in module.named_modules()
        if type(layer) is nn.Linear and uses[id(layer.weight)] == 1
    }
    for target in config.targets:
        if not any(fnmatchcase(name, target) for name in known):
            # A mistake of the user: the text is all that is printed.
            raise ConfigError(
                f"transform.new_plugin_scaled.targets: the model has no linear layer {target!r}"
                f"{did_you_mean(target, known)} (there are: {', '.join(known)})"
            )
    if not known:
        raise ConfigError("train.transforms: the model has no linear layers, which new_plugin_scaled needs")
    targets = config.targets or ("*",)
    return [layer for name, layer in known.items() if any(fnmatchcase(name, target) for target in targets)]


def merge(config: Scaled, weights: Mapping[str, Lazy]) -> Mapping[str, Lazy]:
    """Return the weights of the model without factors; they are read one at a time."""
    merged = {name: tensor for name, tensor in weights.items() if not name.endswith(f".{FACTOR}")}
    for name in weights.keys() - merged.keys():
        weight = name.removesuffix(FACTOR) + "weight"
        merged[weight] = scaled_rows(weights[weight], weights[name])
    return merged


def scaled_rows(weight: Lazy, factor: Lazy) -> Lazy:
    """Return the product, which is computed in fp32 when it is read, and rounded once."""

    def read() -> Tensor:
        return (weight.read().float() * factor.read().float()[:, None]).to(weight.dtype)

    return Lazy(weight.shape, weight.dtype, read)
