"""A model cut into the stages of a pipeline."""

from __future__ import annotations

from torch import nn

from recipe_core.errors import ConfigError, PluginError
from recipe_core.modules import matching
from recipe_core.specs import Structure


def cut(module: nn.Module, structure: Structure, index: int, count: int) -> list[str]:
    """Leave of ``module`` what stage ``index`` of ``count`` computes with; None stands in the place of the rest.

    Blocks are shared out evenly. Returns the names of the parameters that the first and the last stage both hold.

    Raises:
        ConfigError: there are fewer blocks than stages.
        PluginError: the model does not say how it may be cut, or not of all its parameters.
    """
    stages, blocks = structure.stages, list(matching(module, structure.blocks))
    if stages is None or not blocks:
        raise PluginError(f"layout: model {structure.model!r} cannot be a pipeline: it names no stages or blocks")
    if len(blocks) < count:
        raise ConfigError(f"layout.pp: {count} stages need as many blocks, and the model has {len(blocks)}")
    for name in {*stages.first, *stages.last} - {name for name, _ in module.named_modules()}:
        raise PluginError(f"model {structure.model!r}: its stages name {name}, and it has no such submodule")
    ends = {*stages.first, *stages.last}
    homeless = [name for name, _ in module.named_parameters() if not _below(name, {*blocks, *ends})]
    if homeless:
        raise PluginError(f"model {structure.model!r}: no stage of a pipeline holds {', '.join(homeless[:5])}")
    both = set(stages.first) & set(stages.last) if count > 1 else set()
    tied = [name for name, _ in module.named_parameters() if _below(name, both)] if index in (0, count - 1) else []
    wanted = set(blocks[index * len(blocks) // count : (index + 1) * len(blocks) // count])
    wanted |= set(stages.first) if index == 0 else set()
    wanted |= set(stages.last) if index == count - 1 else set()
    for name in {*blocks, *ends} - wanted:
        owner, _, child = name.rpartition(".")
        setattr(module.get_submodule(owner), child, None)
    return tied


def _below(name: str, modules: set[str]) -> bool:
    """Whether the parameter ``name`` belongs to one of ``modules``."""
    return any(name.startswith(f"{module}.") for module in modules)
