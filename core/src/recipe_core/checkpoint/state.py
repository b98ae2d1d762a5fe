"""A model and its optimizer as one nested dict, by names that do not depend on the layout."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from recipe_core.checkpoint.lazy import Lazy, leaves, mapped, without_meta
from recipe_core.hooks.specs import Model, Part
from recipe_core.layouts.built import build_model
from recipe_core.layouts.ties import ties as _ties
from recipe_core.settings.fill import flat

LEAF_OVERHEAD = 4096
"""Bytes that a checkpoint needs for a leaf beside its values, at most: headers in the file, its metadata."""


def weights(module: nn.Module) -> dict[str, Any]:
    """The tensors of the model as a checkpoint names them, nothing copied; see :func:`gather_state`."""
    module = _bare(module)
    # get_model_state_dict imports PyTorch's compiler, most of a second, to strip `_orig_mod.` from names; without the
    # compiler nothing is compiled.
    tensors = get_model_state_dict(module) if "torch._dynamo" in sys.modules else dict(module.state_dict())
    for alias in _ties(module):
        del tensors[alias]
    return tensors


def blank_weights(model: Part[Model]) -> dict[str, Any]:
    """The tensors of a model by name, without values: it is built on the meta device."""
    with torch.device("meta"):
        module, _ = build_model(model)
    return weights(module)


def gather_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``{"model": {name: tensor}, "optimizer": {"state": {name: {...}}}}``, nothing copied.

    Names are those of the bare module: without DistributedDataParallel's ``module.`` and torch.compile's
    ``_orig_mod.``. Tied weights appear once, under their first name. Sharded parameters stay DTensors. It is what a
    checkpoint saves, and what it fills for :func:`apply_state`; call it between two steps.

    The optimizer's settings (its parameter groups) are the job's and no part of the state: their names change with the
    optimizer's implementation and with PyTorch's version, and a run that continues takes its own.
    """
    module = _bare(module)
    _complete(optimizer)
    weights, moments = get_state_dict(module, optimizer)
    for alias in _ties(module):
        del weights[alias]
    return {"model": weights, "optimizer": {"state": moments["state"]}}


def apply_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take over ``state``, which has the form that :func:`gather_state` gives; tied weights stay tied.

    What other processes hold, meta tensors here, is left out.
    """
    module = _bare(module)
    _complete(optimizer)
    weights = without_meta(state["model"])
    for alias, first in _ties(module).items():
        weights[alias] = weights[first]
    groups = get_optimizer_state_dict(module, optimizer)["param_groups"]
    moments = {"state": without_meta(state["optimizer"]["state"]), "param_groups": groups}
    set_state_dict(module, optimizer, model_state_dict=weights, optim_state_dict=moments)


def fillable(state: dict[str, Any], room: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """``state`` as a checkpoint can fill it in place, for :func:`apply_state`.

    ``room`` gives what is filled for each tensor, see :meth:`recipe_core.engine.protocol.Engine.fillable`.
    """
    targets: dict[str, Any] = mapped(state, lambda leaf: room(leaf) if isinstance(leaf, Tensor) else leaf)
    return targets


def state_size(state: Mapping[str, Any]) -> int:
    """Bytes of a checkpoint that holds ``state``, by all ranks together, rounded up generously."""
    return sum(
        LEAF_OVERHEAD + (math.prod(leaf.shape) * leaf.dtype.itemsize if isinstance(leaf, Tensor | Lazy) else 0)
        for leaf in leaves(state)
    )


def not_finite(state: Mapping[str, Any]) -> list[str]:
    """Names of the weights and optimizer states, of those that this process holds, that are not finite.

    One pass over the values, on the device where they are; the host waits once for each device and type. Of the model
    only what the optimizer trains counts: a buffer may well hold infinities (a mask).
    """
    moments = state["optimizer"]["state"]
    trained = {name: tensor for name, tensor in state["model"].items() if name in moments}
    leaves = dict(flat({"model": trained, "optimizer": {"state": moments}}))
    groups: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.is_meta:
            local = (leaf._local_tensor if isinstance(leaf, DTensor) else leaf).detach()
            if local.numel():
                groups.setdefault((local.device, local.dtype), {})[name] = local
    names = set()
    for tensors in groups.values():
        ends = torch.stack([torch.stack(torch.aminmax(tensor)) for tensor in tensors.values()])  # NaN is passed on
        names |= {name for name, fine in zip(tensors, ends.isfinite().all(1).cpu().tolist(), strict=True) if not fine}
    return [name for name in leaves if name in names]


def _bare(module: nn.Module) -> nn.Module:
    """``module`` without the wrappers around the whole of it."""
    while True:
        inner = module.module if isinstance(module, DistributedDataParallel) else getattr(module, "_orig_mod", None)
        if inner is None:
            return module
        module = inner


def _complete(optimizer: torch.optim.Optimizer) -> None:
    """Give every parameter its optimizer state: a new optimizer has none, nor has a parameter that got no gradient yet.

    Optimizers make their states in the first step, so that a run that resumes would otherwise expect other entries than
    the run that saved. A step of length zero with zero gradients makes what is missing; nothing else moves, and steps
    are then counted from zero again. (torch's own functions do this too, for a wholly new optimizer, but leave it at
    step 1: Adam's bias correction would then be off by one from then on.)
    """
    every = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    missing = [p for p in every if not optimizer.state.get(p)]
    make_states = getattr(optimizer, "make_states", None)  # of ours, which need no gradients as large as the model
    if not missing or (make_states is not None and make_states(missing)):
        return
    gradients, rates = [p.grad for p in every], [group.get("lr") for group in optimizer.param_groups]
    try:
        for p in every:
            p.grad = None
        for p in missing:
            p.grad = torch.zeros_like(p)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = torch.zeros_like(rate) if isinstance(rate, Tensor) else 0.0
        optimizer.step()
    finally:
        for p, gradient in zip(every, gradients, strict=True):
            p.grad = gradient
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate
    for p in missing:
        steps = optimizer.state.get(p, {}).get("step")
        if isinstance(steps, Tensor):
            steps.zero_()
        elif steps is not None:
            optimizer.state[p]["step"] = 0
