"""A model's tensor plan applied to it: which parameters are cut where, and what each submodule then computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from recipe_core.errors import ConfigError, PluginError, did_you_mean
from recipe_core.modules import matching
from recipe_core.tensor_parallel.roles import Team, start, take, use_local_parameters
from recipe_core.ties import replace, ties

_CUT: dict[str, dict[str, int]] = {
    "column": {"weight": 0, "bias": 0},
    "row": {"weight": 1},
    "vocabulary_in": {"weight": 0},
    "vocabulary_out": {"weight": 0, "bias": 0},
}
"""Along which dimension each role cuts its parameters; the others are whole on every rank."""
_TYPES = {"column": nn.Linear, "row": nn.Linear, "vocabulary_in": nn.Embedding, "vocabulary_out": nn.Linear}
_INHERITED = ("sequence", "replicated", "split")
"""Roles that the submodules of a module share, where they have none of their own."""
ROLES = (*_CUT, *_INHERITED)


def divide(module: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh, device: torch.device, sequence: bool) -> Team:
    """Cut ``module`` over the ranks of ``mesh`` (one axis) as ``plan`` says; its parameters become DTensors.

    Args:
        module: with or without values (on the meta device).
        plan: pattern of submodules -> role, see :mod:`recipe_core.tensor_parallel.roles`.
        mesh: the ranks of one team.
        device: where the model computes.
        sequence: whether to split the residual stream along the sequence.

    Raises:
        ConfigError: the number of ranks does not divide what is to be cut.
        PluginError: the plan does not fit the model: a pattern without a match, an unknown role, a parameter without
            a role, tied parameters that are to be cut in different ways.
    """
    roles, tied = _assigned(module, plan), ties(module)
    team = Team(mesh.get_group(), mesh.get_local_rank(), mesh.size(), device, sequence)
    cuts: dict[Tensor, tuple[int | None, str]] = {}
    for name, owner in module.named_modules():
        role, inherited = roles.get(name), _inherited(name, roles)
        for parameter_name, parameter in owner.named_parameters(recurse=False):
            full = f"{name}.{parameter_name}"
            if role or inherited:
                dim = _CUT.get(role or "", {}).get(parameter_name)
                _require_same(cuts, parameter, full, dim)
                if _is_partial(role, inherited, dim, sequence):
                    team.partial.append((owner, parameter_name))
    _require_all(module, cuts)
    replace(module, {p: _piece(p, dim, mesh, name) for p, (dim, name) in cuts.items()})
    for name, owner in list(module.named_modules()):
        if name in roles:
            take(owner, roles[name], name, team, inside=_inherited(name, roles) == "split")
        elif next(owner.parameters(recurse=False), None) is not None:
            use_local_parameters(owner)
    start(module, team)
    if ties(module) != tied:
        raise PluginError(f"tensor plan: tied parameters came apart: {tied} before, {ties(module)} after")
    return team


def _assigned(module: nn.Module, plan: Mapping[str, str]) -> dict[str, str]:
    """The role of each submodule that the plan names."""
    roles: dict[str, str] = {}
    for pattern, role in plan.items():
        if role not in ROLES:
            hint = did_you_mean(role, ROLES)
            raise PluginError(f"tensor plan: {pattern}: no such role as {role!r}{hint} (roles: {', '.join(ROLES)})")
        found = matching(module, pattern)
        if not found:
            hint = did_you_mean(pattern, [name for name, _ in module.named_modules()])
            raise PluginError(f"tensor plan: {pattern}: the model has no such submodule{hint}; mend the plugin")
        for name, owner in found.items():
            if roles.setdefault(name, role) != role:
                raise PluginError(f"tensor plan: {name}: two patterns name it, as {roles[name]} and as {role}")
            expected = _TYPES.get(role, nn.Module)
            if not isinstance(owner, expected):
                kind = type(owner).__name__
                raise PluginError(f"tensor plan: {name}: {role} is a role for {expected.__name__}, and this is {kind}")
    return roles


def _inherited(name: str, roles: Mapping[str, str]) -> str | None:
    """The role of the nearest module around ``name`` whose submodules share it."""
    while "." in name:
        name = name.rpartition(".")[0]
        if roles.get(name) in _INHERITED:
            return roles[name]
    return None


def _is_partial(role: str | None, inherited: str | None, dim: int | None, sequence: bool) -> bool:
    """Whether each rank sees only its part of the gradient of a parameter that is whole on all of them."""
    if dim is not None:
        return False
    if role == "row":  # the bias, which is added to the stream
        return sequence
    around = role if role in _INHERITED else inherited
    return around == "split" or (around == "sequence" and sequence)


def _require_same(cuts: dict[Tensor, tuple[int | None, str]], parameter: Tensor, name: str, dim: int | None) -> None:
    """Note where a parameter is cut, which must be the same under each of its names."""
    other, first = cuts.setdefault(parameter, (dim, name))
    if other != dim:
        words = {None: "whole", 0: "cut by rows", 1: "cut by columns"}
        raise PluginError(
            f"tensor plan: {first} and {name} are one tied parameter, which is to be {words[other]} by the role of the "
            f"one and {words[dim]} by that of the other"
        )


def _require_all(module: nn.Module, cuts: Mapping[Tensor, Any]) -> None:
    missing = [name for name, parameter in module.named_parameters() if parameter not in cuts]
    if missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
        raise PluginError(f"tensor plan: no role for what holds {names}; say replicated or sequence for it")


def _piece(parameter: Tensor, dim: int | None, mesh: DeviceMesh, name: str) -> nn.Parameter:
    """This rank's part of a parameter, as a DTensor."""
    local, size = parameter.detach(), mesh.size()
    if dim is not None:
        if local.shape[dim] % size:
            raise ConfigError(
                f"layout.tp: {size} does not divide dimension {dim} of {name}, which is {local.shape[dim]:,} "
                f"(shape {list(local.shape)}); choose another degree, or change the size in the model's settings"
            )
        local = local.chunk(size, dim)[mesh.get_local_rank()].clone(memory_format=torch.contiguous_format)
    placement = Replicate() if dim is None else Shard(dim)
    return nn.Parameter(DTensor.from_local(local, mesh, [placement], run_check=False), parameter.requires_grad)


def partial_gradients(team: Team) -> list[Tensor]:
    """This rank's part of the gradients that are still to be summed over the team; tied parameters once."""
    gradients = {getattr(owner, name): getattr(owner, name).grad for owner, name in team.partial}
    return [g.to_local() if isinstance(g, DTensor) else g for g in gradients.values() if g is not None]
