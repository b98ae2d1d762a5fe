"""Tied parameters: one tensor under several names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from recipe_core.layouts.parallel import plain_name


def ties(module: nn.Module) -> dict[str, str]:
    """Further names of tied parameters -> the first name."""
    first: dict[nn.Parameter, str] = {}
    tied = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        plain = plain_name(name)
        if first.setdefault(parameter, plain) != plain:
            tied[plain] = first[parameter]
    return tied


def replace(module: nn.Module, new: Mapping[Tensor, Tensor]) -> None:
    """Replace parameters and buffers (the keys of ``new``) by its values, wherever ``module`` uses them.

    Tied parameters stay tied, unlike with PyTorch's own functions: parallelize_module, to_empty and a move to some
    devices give each use of a parameter a copy of its own.
    """
    for owner in module.modules():
        for registered in (owner._parameters, owner._buffers):
            for name, tensor in list(registered.items()):
                if tensor is not None and tensor in new:
                    setattr(owner, name, new[tensor])
