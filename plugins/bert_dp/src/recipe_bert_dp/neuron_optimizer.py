"""Optimizer and schedule of ``ckpt_<step>.pt``: states by number, as PyTorch's ``state_dict()`` has them.

The scripts make two groups, by name: what decays, then biases and norms, each in the order of ``named_parameters()``.
A state's number is its place in the groups, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recipe_core.errors import CheckpointError
from recipe_core.lazy import Lazy, lazy
from recipe_core.schedule import learning_rate
from recipe_core.settings import Train

NO_DECAY = ("bias", "LayerNorm")


def order(names: Sequence[str]) -> list[list[str]]:
    """The two groups, from names in the order of the model."""
    plain = [name for name in names if any(part in name for part in NO_DECAY)]
    return [[name for name in names if name not in set(plain)], plain]


def encoded_optimizer(
    states: Mapping[str, Any], groups: Sequence[Sequence[str]], train: Train, step: int
) -> dict[str, Any]:
    """What ``state_dict()`` of the scripts' optimizer gives."""
    numbered: dict[int, Any] = {}
    settings = []
    for names, decay in zip(groups, (train.weight_decay, 0.0), strict=True):
        first = len(numbered)
        numbered.update({first + place: dict(states[name]) for place, name in enumerate(names)})
        places = list(range(first, len(numbered)))
        settings.append({**_settings(train, step), "weight_decay": decay, "params": places})
    return {"state": numbered, "param_groups": settings}


def decoded_states(
    optimizer: Mapping[str, Any], groups: Sequence[Sequence[str]], model: Mapping[str, Lazy], path: Path
) -> dict[str, dict[str, Any]]:
    """States by name.

    Raises:
        CheckpointError: they are not those of this model.
    """
    try:
        lists = [[int(number) for number in group["params"]] for group in optimizer["param_groups"]]
        steps = [group.get("step") for group in optimizer["param_groups"]]
        states = {int(number): dict(state) for number, state in optimizer["state"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: its optimizer is no state_dict() of PyTorch's ({error!r})") from error
    if len(lists) == 1:  # of all parameters at once, in the order of the model
        groups = [[name for name in model if any(name in group for group in groups)]]
    if [len(numbers) for numbers in lists] != [len(names) for names in groups]:
        found, expected = (" and ".join(str(len(group)) for group in some) for some in (lists, groups))
        raise CheckpointError(
            f"{path}: its optimizer has groups of {found} tensors, and its model {expected} (what decays; biases and "
            "norms); its weights alone can be used: train.init_from, or recipe convert --drop optimizer"
        )
    found_states = {}
    for names, numbers, step in zip(groups, lists, steps, strict=True):
        for name, number in zip(names, numbers, strict=True):
            found_states[name] = _state(name, {"step": step, **states.get(number, {})}, model[name], path)
    return found_states


def _state(name: str, state: dict[str, Any], weight: Lazy, path: Path) -> dict[str, Any]:
    """One parameter's, with the step as a tensor, as PyTorch's own optimizers have it."""
    step = state.get("step")
    if isinstance(step, int | float):
        state["step"] = lazy(torch.tensor(float(step)))
    elif step is None:
        raise CheckpointError(f"{path}: its optimizer has no state for {name}")
    for kind, value in state.items():
        if isinstance(value, Lazy) and value.shape not in (weight.shape, torch.Size(())):
            raise CheckpointError(
                f"{path}: its optimizer does not belong to its model: {kind} of {name} has the shape "
                f"{list(value.shape)}, the tensor {list(weight.shape)}"
            )
    return state


def _settings(train: Train, step: int) -> dict[str, Any]:
    """A group's settings under all names by which the scripts' optimizers ask for them."""
    adamw = torch.optim.AdamW([torch.zeros(1)], lr=train.lr, betas=train.betas, eps=train.eps).defaults
    found = {**adamw, "lr": learning_rate(train, step), "initial_lr": train.lr, "correct_bias": True}
    if train.optimizer == "lamb":
        found |= {
            "step": step,
            "bias_correction": True,
            "grad_averaging": True,
            "max_grad_norm": train.clip,
            "trust_clip": bool(train.trust_clip),
            "always_adapt": False,
        }
    return found
