"""Optimizer state indexed by parameter number, as in torch's ``state_dict()``.

Numbers run through the parameter groups. There are two groups, as in nearly every script: parameters with weight decay,
then biases and norms, each in the order of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recipe_core.checkpoint.formats.base import SaveContext
from recipe_core.checkpoint.lazy import Lazy, lazy
from recipe_core.errors import CheckpointError
from recipe_core.hooks.train import Train
from recipe_core.settings.schedule import learning_rate


def parameter_groups(model: Mapping[str, Any]) -> list[list[str]]:
    """Names of parameters with weight decay (matrices and embeddings), and names of biases and norms."""
    plain = [name for name, tensor in model.items() if len(tensor.shape) < 2 or name.endswith("bias")]
    return [[name for name in model if name not in set(plain)], plain]


def indexed_state(
    states: Mapping[str, Mapping[str, Any]],
    model: Mapping[str, Any],
    context: SaveContext,
    step: int,
    format_name: str,
    more: Callable[[Train, float], Mapping[str, Any]] = lambda train, decay: {},
) -> dict[str, Any]:
    """Return the ``state_dict()`` of an optimizer with these states.

    Args:
        states: by name of the parameter, then by kind (``exp_avg``).
        model: names and tensors in the order of the foreign module.
        context: provides the training settings and the learning rate.
        step: completed optimizer steps.
        format_name: name of the format, for the message.
        more: further settings of a parameter group, by the training settings and the group's weight decay.

    Raises:
        CheckpointError: the training settings are not known.
    """
    train = context.train
    if train is None:
        raise CheckpointError(
            f"{format_name} keeps the learning rate beside the optimizer, and it is not known here: name a recipe that "
            "has it (--recipe NAME[:VARIANT]), or convert weights alone (--drop optimizer)"
        )
    states_by_number: dict[int, Any] = {}
    settings = []
    trained = {name: tensor for name, tensor in model.items() if name in states}
    for names, decay in zip(parameter_groups(trained), (train.weight_decay, 0.0), strict=True):
        first = len(states_by_number)
        states_by_number.update({first + place: dict(states[name]) for place, name in enumerate(names)})
        settings.append(
            {
                **_settings(train, _rate(context, train, step), step, decay),
                **more(train, decay),
                "params": list(range(first, len(states_by_number))),
            }
        )
    return {"state": states_by_number, "param_groups": settings}


def scheduler_state_dict(context: SaveContext, step: int) -> dict[str, Any]:
    """Return the ``state_dict()`` of a LambdaLR over the two groups after ``step`` steps; empty if not in a run."""
    train = context.train
    if train is None:
        return {}
    return {
        "base_lrs": [train.lr, train.lr],
        "last_epoch": step,
        "_step_count": step + 1,
        "_get_lr_called_within_step": False,
        "_last_lr": [_rate(context, train, step)] * 2,
        "lr_lambdas": [None, None],
    }


def by_name(optimizer: Mapping[str, Any], model: Mapping[str, Any], where: Path) -> dict[str, dict[str, Any]]:
    """Convert indexed optimizer state to state by the names of ``model``, which is in the order of the file.

    Raises:
        CheckpointError: the state does not belong to this model.
    """
    try:
        lists = [[int(number) for number in group["params"]] for group in optimizer["param_groups"]]
        steps = [group.get("step") for group in optimizer["param_groups"]]
        states = {int(number): dict(state) for number, state in optimizer["state"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where}: its optimizer is no state_dict() of PyTorch's ({error!r})") from error

    def belongs(name: str, number: int) -> bool:
        shapes = (value.shape for value in states.get(number, {}).values() if isinstance(value, Lazy))
        return all(shape in (model[name].shape, torch.Size()) for shape in shapes)

    groups = _grouping(lists, model, where, belongs)
    return {
        name: _state({"step": step, **states.get(number, {})}, name, model[name], where)
        for names, numbers, step in zip(groups, lists, steps, strict=True)
        for name, number in zip(names, numbers, strict=True)
    }


def master_weights(lists: Sequence[Sequence[Any]], model: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Map the fp32 master weights of an optimizer (a list per group) to the names of ``model``.

    Raises:
        CheckpointError: they do not belong to this model.
    """
    groups = _grouping(lists, model, where, lambda name, master: _shape(master) == model[name].shape)
    pairs = ((n, t) for names, group in zip(groups, lists, strict=True) for n, t in zip(names, group, strict=True))
    by_parameter = dict(pairs)
    misfits = [name for name, tensor in by_parameter.items() if _shape(tensor) != model[name].shape]
    if misfits:
        raise CheckpointError(
            f"{where}: its optimizer keeps other shapes of {', '.join(misfits[:10])} than its model has"
        )
    return by_parameter


def _shape(value: Any) -> torch.Size | None:
    return value.shape if isinstance(value, torch.Tensor | Lazy) else None


def _grouping(
    lists: Sequence[Sequence[Any]], model: Mapping[str, Any], where: Path, belongs: Callable[[str, Any], bool]
) -> list[list[str]]:
    """Names of the parameters in each group: one group, or with and without weight decay in either order.

    Without weight decay are biases and norms, or biases alone. ``belongs`` tells whether an entry has the parameter's
    shape, which decides between groupings of equal sizes.
    """
    decaying, plain = parameter_groups(model)
    biases = [name for name in model if name.endswith("bias")]
    no_biases = [name for name in model if not name.endswith("bias")]
    sizes = [len(numbers) for numbers in lists]
    pairs = [[decaying, plain], [no_biases, biases]]
    fitting = [
        groups
        for groups in ([list(model)], *pairs, *([second, first] for first, second in pairs))
        if [len(names) for names in groups] == sizes
    ]
    for groups in fitting:
        if all(all(map(belongs, names, entries)) for names, entries in zip(groups, lists, strict=True)):
            return groups
    if fitting:
        return fitting[0]  # the caller reports its shapes by name
    raise CheckpointError(
        f"{where}: its optimizer has groups of {' and '.join(map(str, sizes))} tensors, and its model has "
        f"{len(decaying)} that decay and {len(plain)} biases and norms; its weights alone can be used: "
        "train.init_from, or recipe convert --drop optimizer"
    )


def _state(state: dict[str, Any], name: str, weight: Any, where: Path) -> dict[str, Any]:
    """State of one parameter, with the step as a tensor, as in torch's optimizers."""
    step = state.get("step")
    if isinstance(step, int | float):
        state["step"] = lazy(torch.tensor(float(step)))
    elif step is None:
        raise CheckpointError(f"{where}: its optimizer has no state for {name}")
    for kind, value in state.items():
        if isinstance(value, Lazy) and value.shape not in (weight.shape, torch.Size(())):
            raise CheckpointError(
                f"{where}: its optimizer does not belong to its model: {kind} of {name} has the shape "
                f"{list(value.shape)}, the tensor {list(weight.shape)}"
            )
    return state


def _rate(context: SaveContext, train: Train, step: int) -> float:
    if context.rate is not None:
        return context.rate(step)
    try:
        return learning_rate(train, step)
    except KeyError:
        raise CheckpointError(
            f"the learning rate is kept beside the optimizer, and that of the schedule {train.schedule!r} is not known "
            "here: install the plugin that has it, or convert weights alone (--drop optimizer)"
        ) from None


def _settings(train: Train, rate: float, step: int, decay: float) -> dict[str, Any]:
    """Settings of a parameter group under all names that common optimizers use."""
    adamw = torch.optim.AdamW([torch.zeros(1)], lr=train.lr, betas=train.betas, eps=train.eps).defaults
    lamb = {
        "grad_averaging": True,
        "max_grad_norm": train.clip,
        "trust_clip": bool(train.trust_clip),
        "always_adapt": False,
    }
    return {
        **adamw,
        **(lamb if train.optimizer == "lamb" else {}),
        "lr": rate,
        "initial_lr": train.lr,
        "weight_decay": decay,
        "step": step,
        "bias_correction": True,
        "correct_bias": True,  # transformers' name for it
    }
