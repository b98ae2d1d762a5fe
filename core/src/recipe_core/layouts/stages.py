"""A model cut into the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from recipe_core.errors import ConfigError, PluginError
from recipe_core.hooks.specs import Structure
from recipe_core.layouts.parallel import plain_name
from recipe_core.layouts.patterns import matching


@dataclass(frozen=True)
class Tie:
    """A parameter that several stages hold, as one of them sees it."""

    name: str
    """The name in checkpoints: the first one that it has in the whole model."""
    here: str
    """The first one that it has on this stage, perhaps another; empty where this stage does not hold it."""
    stages: tuple[int, ...]


def cut(module: nn.Module, structure: Structure, index: int, count: int) -> list[Tie]:
    """Leave of ``module`` what stage ``index`` of ``count`` computes with; None stands in the place of the rest.

    Blocks are shared out evenly. Returns the parameters that several stages hold: those of a submodule that two stages
    have, and those that are tied by identity (``output.weight = tokens.weight``).

    Raises:
        ConfigError: there are fewer blocks than stages.
        PluginError: the model does not say how it may be cut, or not of all its parameters.
    """
    homes = _homes(module, structure, count)
    holders = {name: _holders(name, homes) for name, _ in module.named_parameters(remove_duplicate=False)}
    homeless = [name for name, stages in holders.items() if not stages]
    if homeless:
        raise PluginError(f"model {structure.model!r}: no stage of a pipeline holds {', '.join(homeless[:5])}")
    tied = list(_ties(module, holders, index))
    for name, stages in homes.items():
        if index not in stages:
            owner, _, child = name.rpartition(".")
            setattr(module.get_submodule(owner), child, None)
    return tied


def _homes(module: nn.Module, structure: Structure, count: int) -> dict[str, set[int]]:
    """Submodules that are shared out over ``count`` stages, each with the stages that have it."""
    ends, blocks = structure.stages, list(matching(module, structure.blocks))
    if ends is None or not blocks:
        raise PluginError(f"layout: model {structure.model!r} cannot be a pipeline: it names no stages or blocks")
    if len(blocks) < count:
        raise ConfigError(f"layout.pp: {count} stages need as many blocks, and the model has {len(blocks)}")
    known = {name for name, _ in module.named_modules(remove_duplicate=False)}
    for name in {*ends.first, *ends.last} - known:
        raise PluginError(f"model {structure.model!r}: its stages name {name}, and it has no such submodule")
    homes: dict[str, set[int]] = {}
    for stage in range(count):
        for name in blocks[stage * len(blocks) // count : (stage + 1) * len(blocks) // count]:
            homes[name] = {stage}
    for stage, names in ((0, ends.first), (count - 1, ends.last)):
        for name in names:
            homes.setdefault(name, set()).add(stage)
    return homes


def _holders(name: str, homes: Mapping[str, set[int]]) -> set[int]:
    """The stages that have the submodule of the parameter ``name``."""
    return {stage for home, stages in homes.items() if name.startswith(f"{home}.") for stage in stages}


def _ties(module: nn.Module, holders: Mapping[str, set[int]], index: int) -> Iterator[Tie]:
    """Parameters that several stages hold, under whatever names, as stage ``index`` sees them."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for same in names.values():
        here = next((plain_name(name) for name in same if index in holders[name]), "")
        stages = sorted({stage for name in same for stage in holders[name]})
        if len(stages) > 1:
            yield Tie(plain_name(same[0]), here, tuple(stages))
