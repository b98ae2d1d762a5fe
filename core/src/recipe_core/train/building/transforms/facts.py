"""Facts of a transformed model, measured on the model without values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import Tensor, nn

from recipe_core.hooks.specs import Model, ModelFacts, Part, Structure
from recipe_core.layouts.built import build_blank
from recipe_core.layouts.patterns import matching
from recipe_core.layouts.tensor_parallel.plan import assign
from recipe_core.layouts.transformed import Transforms, transform


def measured(model: Part[Model], transforms: Transforms, facts: ModelFacts, sequence: int) -> ModelFacts:
    """Return ``facts``, those of the model alone, with the counts of the model with ``transforms``.

    Activations stay those of the model: what adapters keep for backward is small, and a little less is kept for frozen
    weights. ``sequence`` is the number of tokens of a sample.

    Raises:
        PluginError: the code of a transform fails.
        ConfigError: a transform does not fit the model.
    """
    module = build_blank(model)
    linears = {parameter for layer in _linears(module) for parameter in (layer.weight,)}
    known = set(module.parameters())
    module, structure = transform(transforms, module, model.spec.structure(model.config))
    blocks = matching(module, structure.blocks).values() if structure.blocks else ()
    trained, frozen = _split(module.parameters())
    in_block = max((_split(block.parameters()) for block in blocks), key=sum, default=(0, 0))
    divided = _split(_divided(module, structure)) if structure.plan else (0, 0)
    # Two of the six operations for each weight and token are those of its gradient.
    spared = sum(2 * weight.numel() for weight in linears if not weight.requires_grad)
    more = sum(6 * weight.numel() for weight in module.parameters() if weight not in known and weight.ndim > 1)
    return replace(
        facts,
        parameters=trained, frozen_parameters=frozen,
        block_parameters=in_block[0], frozen_block_parameters=in_block[1],
        divided_parameters=divided[0], frozen_divided_parameters=divided[1],
        flops_per_sample=facts.flops_per_sample + (more - spared) * sequence,
    )  # fmt: skip


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def _split(parameters: Iterable[Tensor]) -> tuple[int, int]:
    """The numbers of trained and of frozen values."""
    counts = {True: 0, False: 0}
    for parameter in parameters:
        counts[parameter.requires_grad] += parameter.numel()
    return counts[True], counts[False]


def _divided(module: nn.Module, structure: Structure) -> list[Tensor]:
    cuts = assign(module, structure.plan, 1).cuts
    return [parameter for parameter, cut in cuts.items() if cut.dim is not None]
