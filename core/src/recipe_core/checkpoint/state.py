"""The state of a model and its optimizer as one nested dict, with names that do not depend on the layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from recipe_core.checkpoint.lazy import Lazy, tree_leaves, tree_map, without_meta
from recipe_core.engine.dtensor import is_dtensor
from recipe_core.hooks.specs import Model, Part
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.layouts.built import build_blank
from recipe_core.layouts.parallel import plain_name
from recipe_core.layouts.ties import ties as _ties
from recipe_core.layouts.transformed import transform
from recipe_core.settings.fill import flat

LEAF_OVERHEAD = 4096
"""Upper limit, in bytes, of the space that a leaf needs in addition to its values: file headers and metadata."""


def weights(module: nn.Module) -> dict[str, Any]:
    """Return the model's tensors under their names in a checkpoint, without copies; see :func:`gather_state`."""
    module = _unwrapped(module)
    tensors = {plain_name(name): tensor for name, tensor in module.state_dict().items()}
    for alias in _ties(module):
        del tensors[alias]
    return tensors


def blank_weights(model: Part[Model], transforms: Sequence[Part[TransformSpec]] = ()) -> dict[str, Any]:
    """Return the tensors of a model with its transforms by name, built on the meta device, without values."""
    return weights(transform(transforms, build_blank(model), model.spec.structure(model.config))[0])


def gather_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """``{"model": {name: tensor}, "optimizer": {"state": {name: {...}}}}``, without copies.

    Names are those of the bare module: without DistributedDataParallel's ``module.`` and torch.compile's
    ``_orig_mod.``. Tied weights appear once, under their first name. Sharded parameters stay DTensors. A checkpoint
    saves this state, and fills it for :func:`apply_state`. Call it between two steps.

    The states of the optimizer come in the order of the weights, whatever the order in which they were made, so that
    the checkpoints of a run have the same bytes whether it was interrupted or not.

    The optimizer's settings (its parameter groups) are not part of the state: their names depend on the optimizer's
    implementation and on PyTorch's version, and a resumed run uses the settings of its job.
    """
    _fill_missing_states(optimizer)
    model, names = weights(module), _parameter_names(module, optimizer)
    states = {names[number]: state for number, state in optimizer.state_dict()["state"].items()}
    ordered = {name: states.pop(name) for name in model if name in states}
    return {"model": model, "optimizer": {"state": ordered | states}}


def apply_state(module: nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load ``state``, which has the form of :func:`gather_state`; tied weights stay tied.

    Meta tensors, the placeholders of tensors that other processes hold, are skipped.
    """
    module = _unwrapped(module)
    _fill_missing_states(optimizer)
    values = without_meta(state["model"])
    for alias, first in _ties(module).items():
        values[alias] = values[first]
    registered = {plain_name(name): name for name in module.state_dict()}
    module.load_state_dict({registered.get(name, name): tensor for name, tensor in values.items()})
    moments, names = without_meta(state["optimizer"]["state"]), _parameter_names(module, optimizer)
    current = optimizer.state_dict()
    optimizer.load_state_dict({**current, "state": {number: moments[names[number]] for number in current["state"]}})


def load_targets(state: dict[str, Any], room: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return a copy of ``state`` that a checkpoint can fill in place, for :func:`apply_state`.

    ``room`` returns the tensor to fill for each tensor; see :meth:`recipe_core.engine.protocol.Engine.load_target`.
    """
    targets: dict[str, Any] = tree_map(lambda leaf: room(leaf) if isinstance(leaf, Tensor) else leaf, state)
    return targets


def state_size(state: Mapping[str, Any]) -> int:
    """Upper estimate of the size, in bytes, of a checkpoint of ``state``, for all ranks together."""
    return sum(
        LEAF_OVERHEAD + (math.prod(leaf.shape) * leaf.dtype.itemsize if isinstance(leaf, Tensor | Lazy) else 0)
        for leaf in tree_leaves(state)
    )


def not_finite(state: Mapping[str, Any]) -> list[str]:
    """Return the names of this process's weights and optimizer states that are not finite.

    Makes one pass over the values on their device; the host synchronises once per device and dtype. Only trained
    tensors of the model count: a buffer, such as a mask, may hold infinities.
    """
    moments = state["optimizer"]["state"]
    trained = {name: tensor for name, tensor in state["model"].items() if name in moments}
    leaves = dict(flat({"model": trained, "optimizer": {"state": moments}}))
    groups: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
    for name, leaf in leaves.items():
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and not leaf.is_meta:
            local = (leaf._local_tensor if is_dtensor(leaf) else leaf).detach()
            if local.numel():
                groups.setdefault((local.device, local.dtype), {})[name] = local
    bad = set()
    for tensors in groups.values():
        ends = torch.stack([torch.stack(torch.aminmax(tensor)) for tensor in tensors.values()])  # NaN propagates
        bad |= {name for name, fine in zip(tensors, ends.isfinite().all(1).cpu().tolist(), strict=True) if not fine}
    return [name for name in leaves if name in bad]


def _unwrapped(module: nn.Module) -> nn.Module:
    while True:
        inner = module.module if isinstance(module, DistributedDataParallel) else getattr(module, "_orig_mod", None)
        if inner is None:
            return module
        module = inner


def _parameter_names(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of the optimizer's parameters in a checkpoint, by their numbers in its ``state_dict``."""
    names = {parameter: plain_name(name) for name, parameter in _unwrapped(module).named_parameters()}
    return [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]


def _fill_missing_states(optimizer: torch.optim.Optimizer) -> None:
    """Create the missing optimizer states: a new optimizer has none, nor has a parameter without a gradient so far.

    Optimizers create their states in the first step, so a resumed run would otherwise expect other entries than the run
    that saved. A step with learning rate zero and zero gradients creates them and changes nothing else; step counts are
    then reset to zero. (torch's own functions do this for a new optimizer, but leave the count at 1, which shifts
    Adam's bias correction by one step.)
    """
    every = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    missing = [p for p in every if not optimizer.state.get(p)]
    make_states = getattr(optimizer, "make_states", None)  # our optimizers need no gradients as large as the model
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
