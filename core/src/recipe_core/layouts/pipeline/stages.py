"""Cut a model into pipeline stages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from recipe_core.errors import ConfigError, PluginError, did_you_mean
from recipe_core.hooks.specs import Structure
from recipe_core.layouts.parallel import plain_name
from recipe_core.layouts.patterns import matching


@dataclass(frozen=True)
class TiedParameter:
    """A parameter that several stages hold, from the point of view of one stage."""

    name: str
    """The name in checkpoints: its first name in the whole model."""
    local_name: str
    """Its first name on this stage; empty if this stage does not hold it."""
    stages: tuple[int, ...]


def cut_stage(module: nn.Module, structure: Structure, index: int, count: int) -> list[TiedParameter]:
    """Keep of ``module`` the submodules of stage ``index`` of ``count``; the others become None.

    Stages get equal numbers of blocks; a submodule between blocks is on the stage of the block that it follows. Returns
    the parameters that several stages hold: those of a submodule that two stages have, and those that are tied by
    identity (``output.weight = tokens.weight``).

    Raises:
        ConfigError: there are fewer blocks than stages.
        PluginError: the model names no stages or blocks, or a parameter belongs to no stage.
    """
    homes = _stages_by_submodule(module, structure, count)
    holders = {name: _stages_with(name, homes) for name, _ in module.named_parameters(remove_duplicate=False)}
    unassigned = [name for name, stages in holders.items() if not stages]
    if unassigned:
        raise PluginError(f"model {structure.model!r}: no stage of a pipeline holds {', '.join(unassigned[:5])}")
    tied = list(_ties(module, holders, index))
    for name, stages in homes.items():
        if index not in stages:
            owner, _, child = name.rpartition(".")
            setattr(module.get_submodule(owner), child, None)
    return tied


def _stages_by_submodule(module: nn.Module, structure: Structure, count: int) -> dict[str, set[int]]:
    ends, blocks = structure.stages, list(matching(module, structure.blocks))
    if ends is None or not blocks:
        raise PluginError(f"layout: model {structure.model!r} cannot be a pipeline: it names no stages or blocks")
    if len(blocks) < count:
        raise ConfigError(f"layout.pp: {count} stages need as many blocks, and the model has {len(blocks)}")
    known = {name for name, _ in module.named_modules(remove_duplicate=False)}
    for name in {*ends.first, *ends.last, *ends.between} - known:
        raise PluginError(f"model {structure.model!r}: its stages name {name}, and it has no such submodule")
    homes: dict[str, set[int]] = {}
    for stage in range(count):
        for name in blocks[stage * len(blocks) // count : (stage + 1) * len(blocks) // count]:
            homes[name] = {stage}
    _require_between(structure, homes)
    between = {name: set(homes[block]) for name, block in ends.between.items()}
    for stage, names in ((0, ends.first), (count - 1, ends.last)):
        for name in names:
            homes.setdefault(name, set()).add(stage)
    for name, stages in between.items():
        homes.setdefault(name, set()).update(stages)
    return homes


def _require_between(structure: Structure, blocks: Collection[str]) -> None:
    assert structure.stages is not None
    for name, block in structure.stages.between.items():
        if block not in blocks:
            raise PluginError(
                f"model {structure.model!r}: its stages put {name} after {block}, which is none of its blocks"
                f"{did_you_mean(block, blocks)} ({structure.blocks})"
            )
        if inside := [one for one in blocks if f"{name}.".startswith(f"{one}.") or one.startswith(f"{name}.")]:
            raise PluginError(
                f"model {structure.model!r}: its stages put {name} between blocks, and it is, is in, or contains the "
                f"block {inside[0]}; a stage holds whole blocks anyway"
            )


def _stages_with(name: str, homes: Mapping[str, set[int]]) -> set[int]:
    return {stage for home, stages in homes.items() if name.startswith(f"{home}.") for stage in stages}


def _ties(module: nn.Module, holders: Mapping[str, set[int]], index: int) -> Iterator[TiedParameter]:
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for same in names.values():
        here = next((plain_name(name) for name in same if index in holders[name]), "")
        stages = sorted({stage for name in same for stage in holders[name]})
        if len(stages) > 1:
            yield TiedParameter(plain_name(same[0]), here, tuple(stages))
