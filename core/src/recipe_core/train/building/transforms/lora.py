"""The transform ``lora``: low-rank adapters of frozen linear layers (Hu and others, https://arxiv.org/abs/2106.09685).

A layer computes ``x W' + bias + scale * (dropout(x) A') B'``, with ``W`` frozen, ``A`` of ``[rank, in]`` drawn as
``nn.Linear`` draws its weights, and ``B`` of ``[out, rank]``, which begins with zeros. Both are parameters of the layer
itself, ``lora_a`` and ``lora_b``, so that its weight keeps its name.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipe_core.checkpoint.lazy import Lazy
from recipe_core.errors import ConfigError
from recipe_core.hooks.specs import Structure
from recipe_core.layouts.patterns import matching
from recipe_core.ops.initial import uniform_of
from recipe_core.train.building.transforms.names import parameters_of, unmatched
from recipe_core.train.building.transforms.settings import Lora

A, B = "lora_a", "lora_b"
_TARGETS = "transform.lora.targets"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter, on top of a linear layer of any class; see :func:`add_adapter`."""

    lora_a: nn.Parameter
    lora_b: nn.Parameter
    lora_scale: float
    lora_dropout: float
    role_cuts: Mapping[str, Mapping[str, int]] = {"column": {B: 0}, "row": {A: 1}}
    """The dimension that a role of the tensor plan shards. What it does not shard has only a part of its gradient on
    each rank, since each has a part of the other's features."""

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        output: Tensor = super().forward(x)
        return output + self._update(x)

    def product(self, x: Tensor) -> Tensor:
        """The output without the bias, which a row of a tensor-parallel layer adds after its sum over ranks."""
        return F.linear(x, self.weight) + self._update(x)

    def _update(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(F.dropout(x, self.lora_dropout, self.training), self.lora_a), self.lora_b) * (
            self.lora_scale
        )

    def initial_value(self, name: str, shape: torch.Size) -> Tensor | None:
        """See :class:`recipe_core.Deferred`; ``name`` is the name in the whole model."""
        if name.endswith(f".{A}"):
            return uniform_of(name, shape, 1 / math.sqrt(shape[1]))
        return torch.zeros(shape, device="cpu") if name.endswith(f".{B}") else None


def lora(config: Lora, module: nn.Module, structure: Structure) -> nn.Module:
    """Freeze ``module``, and give the linear layers that ``config`` names an adapter.

    Raises:
        ConfigError: a pattern matches no linear layer, or one whose weight another submodule uses, too.
    """
    trained = set(parameters_of(module, config.trained, "transform.lora.trained"))
    targets = _targets(config, module, structure, trained)
    for parameter in module.parameters():
        parameter.requires_grad_(parameter in trained)
    for name, layer in targets.items():
        add_adapter(layer, name, config)
    return module


@torch.no_grad()
def add_adapter(layer: nn.Linear, name: str, config: Lora) -> None:
    """Give ``layer``, which is ``name`` in the model, an adapter in place; its class becomes a subclass of its own."""
    layer.__class__ = _subclass(type(layer))  # type: ignore[arg-type]  # a class can be hashed
    assert isinstance(layer, LoraLinear)
    layer.lora_scale, layer.lora_dropout = config.scale, config.dropout
    weight = layer.weight
    for kind, shape in ((A, (config.rank, layer.in_features)), (B, (layer.out_features, config.rank))):
        room = torch.empty(shape, dtype=weight.dtype, device=weight.device)
        if not room.is_meta:
            value = layer.initial_value(f"{name}.{kind}", room.shape)
            assert value is not None
            room.copy_(value)
        setattr(layer, kind, nn.Parameter(room))


@lru_cache
def _subclass(base: type[nn.Linear]) -> type[nn.Linear]:
    # The layer may be one that multiplies in 8 bits: it keeps doing so.
    return type(f"Lora{base.__name__}", (LoraLinear, base), {"__module__": __name__})


def _targets(
    config: Lora, module: nn.Module, structure: Structure, trained: Container[nn.Parameter]
) -> dict[str, nn.Linear]:
    linears = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    if already := next((name for name, layer in linears.items() if isinstance(layer, LoraLinear)), None):
        raise ConfigError(f"train.transforms: {already} has an adapter already; list lora once")
    if not config.targets:
        blocks = list(matching(module, structure.blocks)) if structure.blocks else []
        within = [n for n in linears if not blocks or any(f"{n}.".startswith(f"{block}.") for block in blocks)]
        whole = [name for name in within if linears[name].weight not in trained]
        chosen = {name: linears[name] for name in whole if not _users(module, linears[name]) - {name}}
        if not chosen:
            raise ConfigError(f"{_TARGETS}: the blocks of this model have no linear layers; lora needs some")
        return chosen
    chosen = {}
    for pattern in config.targets:
        found = {name: layer for name, layer in linears.items() if _matches(name, pattern)}
        if not found:
            raise ConfigError(unmatched(_TARGETS, pattern, list(linears), "linear layer"))
        chosen |= found
    for name, layer in chosen.items():
        if others := _users(module, layer) - {name}:
            raise ConfigError(f"{_TARGETS}: {name} shares its weight with {min(others)}; lora cannot adapt one of them")
    return {name: layer for name, layer in linears.items() if name in chosen}


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _users(module: nn.Module, layer: nn.Linear) -> set[str]:
    """Names of all submodules that use the weight of ``layer``."""
    named = module.named_parameters(remove_duplicate=False)
    return {name.rpartition(".")[0] for name, parameter in named if parameter is layer.weight}


def merge(config: Lora, weights: Mapping[str, Lazy]) -> dict[str, Lazy]:
    """Return the weights of the model without adapters: ``W + scale * B A``, computed in fp32 and rounded once."""
    merged = dict(_without_adapters(weights))
    for layer in adapted(weights):
        weight, a, b = (weights[f"{layer}.{kind}"] for kind in ("weight", A, B))
        merged[f"{layer}.weight"] = Lazy(weight.shape, weight.dtype, partial(_merged, weight, a, b, config.scale))
    return merged


def adapted(weights: Mapping[str, Any]) -> list[str]:
    """Return the names of the layers with an adapter in ``weights``."""
    return [name.removesuffix(f".{A}") for name in weights if name.endswith(f".{A}")]


def _without_adapters(weights: Mapping[str, Lazy]) -> Iterator[tuple[str, Lazy]]:
    return ((name, tensor) for name, tensor in weights.items() if name.rpartition(".")[2] not in (A, B))


def _merged(weight: Lazy, a: Lazy, b: Lazy, scale: float) -> Tensor:
    whole = weight.read()
    return (whole.float() + scale * (b.read().float() @ a.read().float())).to(whole.dtype)
