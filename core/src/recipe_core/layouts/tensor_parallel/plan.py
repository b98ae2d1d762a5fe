"""A model's tensor plan applied to it: how each parameter is sharded, and what each submodule computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.errors import ConfigError, PluginError, did_you_mean
from recipe_core.layouts.patterns import matching
from recipe_core.layouts.tensor_parallel.inputs import Inputs, NamedRole, parse_role
from recipe_core.layouts.tensor_parallel.roles import TpGroup, seed_ranks, set_role, use_local_parameters
from recipe_core.layouts.ties import replace, ties

BY_ROLE: Mapping[str, Mapping[str, int]] = {
    "column": {"weight": 0, "bias": 0},
    "row": {"weight": 1},
    "vocabulary_in": {"weight": 0},
    "vocabulary_out": {"weight": 0, "bias": 0},
}
"""The dimension along which a role shards the parameters of its submodule; other roles shard nothing."""
_TYPES = {"column": nn.Linear, "row": nn.Linear, "vocabulary_in": nn.Embedding, "vocabulary_out": nn.Linear}
_UNEVEN = ("vocabulary_in", "vocabulary_out")
"""Roles whose shards may differ in size: the size of a vocabulary need not divide by the degree."""
_INHERITED = ("sequence", "replicated", "whole", "split")
"""Roles that submodules inherit, if they have none of their own."""
ROLES = (*BY_ROLE, *_INHERITED)


class Cut(NamedTuple):
    """How a parameter is sharded over the tensor-parallel group."""

    name: str
    dim: int | None
    """The sharded dimension; None: replicated."""
    even: bool
    """All shards must have the same size."""
    partial: bool
    """Replicated, and each rank has only its part of the gradient."""


@dataclass(frozen=True)
class Assignment:
    """The roles and shards that a plan gives a model."""

    roles: dict[str, str]
    """Submodule -> role, without inherited roles."""
    inputs: dict[str, Inputs]
    """Inputs of the submodules with a role."""
    cuts: dict[Tensor, Cut]
    partial: list[tuple[nn.Module, str]]
    """See :class:`TpGroup`."""


def assign(
    module: nn.Module, plan: Mapping[str, str], degree: int, *, sequence: bool = False, even: bool = False
) -> Assignment:
    """Match ``plan`` with ``module``, which stays as it is.

    Args:
        module: may be on the meta device.
        plan: pattern of submodules -> role, see :mod:`recipe_core.layouts.tensor_parallel.roles`.
        degree: ranks in a tensor-parallel group.
        sequence: split the residual stream along the sequence.
        even: require all shards to have one size, as FSDP does to shard them further; else those of the vocabulary may
            differ.

    Raises:
        ConfigError: a dimension to be sharded does not divide by ``degree``.
        PluginError: the plan does not fit the model: a pattern without a match, an unknown role, a parameter without
            a role, tied parameters with different shards.
    """
    named = _roles(module, plan)
    roles = {name: role.role for name, role in named.items()}
    inputs = {name: Inputs.of(module.get_submodule(name), name, role) for name, role in named.items()}
    _refuse_nested(roles)
    cuts: dict[Tensor, Cut] = {}
    partial: list[tuple[nn.Module, str]] = []
    for name, owner in module.named_modules():
        role, inherited = roles.get(name), _inherited(name, roles)
        for parameter_name, parameter in owner.named_parameters(recurse=False):
            if role or inherited:
                added = getattr(owner, "role_cuts", {}).get(role or "")  # {}: its parameters are replicated
                dim = {**BY_ROLE.get(role or "", {}), **(added or {})}.get(parameter_name)
                part = _is_partial(role, inherited, dim, sequence)
                if added is not None and dim is None and parameter_name not in ("weight", "bias"):
                    part = True
                cut = Cut(f"{name}.{parameter_name}", dim, even or role not in _UNEVEN, part)
                _require_same(cuts, parameter, cut)
                if part:
                    partial.append((owner, parameter_name))
    _require_all(module, cuts)
    for parameter, cut in cuts.items():
        _require_divisible(parameter, cut, degree)
    return Assignment(roles, inputs, cuts, partial)


def divide(
    module: nn.Module, plan: Mapping[str, str], mesh: DeviceMesh, device: torch.device, sequence: bool,
    *, even: bool = False,
) -> TpGroup:  # fmt: skip
    """Shard ``module`` over the ranks of ``mesh`` (one axis) as ``plan`` says; its parameters become DTensors.

    ``device`` is where the model computes; see :func:`assign` for the other arguments and for errors.
    """
    tied = ties(module)
    assigned = assign(module, plan, mesh.size(), sequence=sequence, even=even)
    tp = TpGroup(mesh.get_group(), mesh.get_local_rank(), mesh.size(), device, sequence, partial=assigned.partial)
    replace(module, {parameter: _local_dtensor(parameter, cut, mesh) for parameter, cut in assigned.cuts.items()})
    for name, owner in list(module.named_modules()):
        if name in assigned.roles:
            inside = _inherited(name, assigned.roles) == "split"
            set_role(owner, assigned.roles[name], assigned.inputs[name], tp, inside=inside)
        elif next(owner.parameters(recurse=False), None) is not None:
            use_local_parameters(owner)
    seed_ranks(module, tp)
    if ties(module) != tied:
        raise PluginError(f"tensor plan: tied parameters came apart: {tied} before, {ties(module)} after")
    return tp


def _roles(module: nn.Module, plan: Mapping[str, str]) -> dict[str, NamedRole]:
    roles: dict[str, NamedRole] = {}
    for pattern, text in plan.items():
        named = parse_role(text)
        role = named.role
        if role not in ROLES:
            hint = did_you_mean(role, ROLES)
            raise PluginError(f"tensor plan: {pattern}: no such role as {role!r}{hint} (roles: {', '.join(ROLES)})")
        owners = matching(module, pattern)
        if not owners:
            hint = did_you_mean(pattern, [name for name, _ in module.named_modules()])
            raise PluginError(f"tensor plan: {pattern}: the model has no such submodule{hint}; fix the plugin")
        for name, owner in owners.items():
            first = roles.setdefault(name, named)
            if first != named:
                raise PluginError(f"tensor plan: {name}: two patterns name it, as {first} and as {named}")
            expected = _TYPES.get(role, nn.Module)
            if not isinstance(owner, expected):
                kind = type(owner).__name__
                raise PluginError(f"tensor plan: {name}: {role} is a role for {expected.__name__}, and this is {kind}")
    return roles


def _refuse_nested(roles: Mapping[str, str]) -> None:
    # Its input would enter twice, and gradients would be summed twice.
    for name, role in roles.items():
        above = name
        while role == "split" and "." in above:
            above = above.rpartition(".")[0]
            if roles.get(above) == "split":
                raise PluginError(f"tensor plan: {name}: split inside {above}, which is split too; keep one of them")


def _inherited(name: str, roles: Mapping[str, str]) -> str | None:
    while "." in name:
        name = name.rpartition(".")[0]
        if roles.get(name) in _INHERITED:
            return roles[name]
    return None


def _is_partial(role: str | None, inherited: str | None, dim: int | None, sequence: bool) -> bool:
    if dim is not None:
        return False
    if role == "row":  # the bias, which is added to the stream
        return sequence
    around = role if role in _INHERITED else inherited
    return around == "split" or (around == "sequence" and sequence)


def _require_same(cuts: dict[Tensor, Cut], parameter: Tensor, cut: Cut) -> None:
    first = cuts.setdefault(parameter, cut)
    if first.dim != cut.dim:
        kinds = {None: "whole", 0: "cut by rows", 1: "cut by columns"}
        raise PluginError(
            f"tensor plan: {first.name} and {cut.name} are one tied parameter, which is to be {kinds[first.dim]} by "
            f"the role of the one and {kinds[cut.dim]} by that of the other"
        )
    if first.partial != cut.partial:
        raise PluginError(
            f"tensor plan: {first.name} and {cut.name} are one tied parameter, and by their roles a rank has the whole "
            "gradient of the one and a part of that of the other, which cannot be added up; give both modules one role "
            "(sequence, or replicated), or take layout.sequence_parallel=false"
        )
    cuts[parameter] = first._replace(even=first.even or cut.even)


def _require_all(module: nn.Module, cuts: Mapping[Tensor, Cut]) -> None:
    missing = [name for name, parameter in module.named_parameters() if parameter not in cuts]
    if missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5:,} more" if len(missing) > 5 else "")
        raise PluginError(f"tensor plan: no role for what holds {names}; say replicated or sequence for it")


def _require_divisible(parameter: Tensor, cut: Cut, degree: int) -> None:
    if cut.dim is None:
        return
    length = parameter.shape[cut.dim]
    most = -(-length // degree)
    if length % degree and (cut.even or most * (degree - 1) >= length):  # every rank has something of it
        raise ConfigError(
            f"layout.tp: {degree} does not divide dimension {cut.dim} of {cut.name}, which is {length:,} "
            f"(shape {list(parameter.shape)}); choose another degree, or change the size in the model's settings"
        )


def _local_dtensor(parameter: Tensor, cut: Cut, mesh: DeviceMesh) -> nn.Parameter:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    local, placement = parameter.detach(), Replicate() if cut.dim is None else Shard(cut.dim)
    if cut.dim is not None:
        part = local.chunk(mesh.size(), cut.dim)[mesh.get_local_rank()]
        local = part.clone(memory_format=torch.contiguous_format)
    piece = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
    return nn.Parameter(piece, parameter.requires_grad)


def partial_gradients(tp: TpGroup) -> list[Tensor]:
    """Local gradients that must still be summed over the tensor-parallel group; tied parameters once."""
    gradients = {getattr(owner, name): getattr(owner, name).grad for owner, name in tp.partial}
    return [g.to_local() if is_dtensor(g) else g for g in gradients.values() if g is not None]
