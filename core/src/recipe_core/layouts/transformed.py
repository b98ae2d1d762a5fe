"""The transforms of a run, applied to its model and checked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain

import torch
from torch import Tensor, nn

from recipe_core.errors import ConfigError, PluginError
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import Model, Part, Structure
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.layouts.built import as_part_error, build_model
from recipe_core.layouts.parallel import Loss
from recipe_core.layouts.patterns import matching

Transforms = Sequence[Part[TransformSpec]]


def build_transformed(model: Part[Model], transforms: Transforms) -> tuple[nn.Module, Loss]:
    """Build a model and apply ``transforms`` to it; the facts are not checked.

    Raises:
        PluginError: the code of the model or of a transform fails.
        ConfigError: a transform does not fit the model.
    """
    module, loss = build_model(model)
    return transform(transforms, module, model.spec.structure(model.config))[0], loss


def transform(transforms: Transforms, module: nn.Module, structure: Structure) -> tuple[nn.Module, Structure]:
    """Apply ``transforms`` to ``module`` in their order; return the module and the names by which layouts divide it.

    Raises:
        PluginError: a transform raises, returns anything else than a module, or takes parameters or blocks away.
        ConfigError: a transform does not fit the model, or leaves nothing to train.
    """
    for part in transforms:
        before = _shapes(module)
        module, structure = _apply(part, module, structure)
        _require_kept(part, before, _shapes(module))
        if structure.blocks and not matching(module, structure.blocks):
            raise PluginError(
                f"{code_of(part.spec)} left no submodule that blocks={structure.blocks!r} matches; keep the blocks of "
                "the model, or return (module, structure) with their new names"
            )
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise ConfigError(
                f"transform.{part.spec.name}: it leaves no parameter of the model to train; choose others to freeze"
            )
    return module, structure


def _apply(part: Part[TransformSpec], module: nn.Module, structure: Structure) -> tuple[nn.Module, Structure]:
    on_meta = any(parameter.is_meta for parameter in module.parameters())
    with as_part_error(part.spec), torch.device("meta") if on_meta else nullcontext():
        answer = part.build(part.config, module, structure)
    if answer is None:
        answer = module
    pair = answer if isinstance(answer, tuple) else (answer, structure)
    if len(pair) != 2 or not isinstance(pair[0], nn.Module) or not isinstance(pair[1], Structure):
        raise PluginError(
            f"{code_of(part.spec)} returned {type(answer).__name__}; expected a torch.nn.Module, (module, structure), "
            "or None where it changed the module in place"
        )
    return pair


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors: chain[tuple[str, Tensor]] = chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    return {name: tuple(tensor.shape) for name, tensor in tensors}


def _require_kept(
    part: Part[TransformSpec], before: dict[str, tuple[int, ...]], after: dict[str, tuple[int, ...]]
) -> None:
    lost = [name for name, shape in before.items() if after.get(name) != shape]
    if lost:
        more = f" and {len(lost) - 3:,} more" if len(lost) > 3 else ""
        raise PluginError(
            f"{code_of(part.spec)} took away or reshaped {', '.join(lost[:3])}{more}; a transform keeps the names and "
            "shapes of the model, by which its checkpoints load, and adds new ones beside them"
        )
