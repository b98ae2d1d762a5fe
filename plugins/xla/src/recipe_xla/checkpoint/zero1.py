"""Optimizer states that neuronx-distributed's ZeRO-1 has sharded across data-parallel ranks, joined.

Each file has ``base_state`` (by number, tensors split along their first dimension and padded to equal shards),
``shape_info`` (by number, the shape without padding), and ``param_groups``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from recipe_core import CheckpointError, Lazy
from recipe_core.checkpoint.ranks.assemble import concatenate


def is_shared(tree: Mapping[str, Any]) -> bool:
    """True for optimizer states that ZeRO-1 has sharded."""
    return "base_state" in tree and "shape_info" in tree


def whole_states(trees: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> dict[str, Any]:
    """The ``state_dict()`` of an optimizer without ZeRO-1.

    Raises:
        CheckpointError: the files do not belong together.
    """
    try:
        _require_same_checkpoint(trees, paths)
        shapes = {number: torch.Size(shape) for number, shape in trees[0]["shape_info"].items()}
        states = {
            number: {kind: _whole([tree["base_state"][number][kind] for tree in trees], shape, kind) for kind in kinds}
            for number, shape in shapes.items()
            for kinds in [trees[0]["base_state"][number]]
        }
        groups = trees[0]["param_groups"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{paths[0]}: its states are not as ZeRO-1 shares them out ({error!r})") from error
    for number, masters in _masters(trees).items():
        if number in states:
            states[number]["master"] = _whole(masters, shapes[number], "master")
    return {"state": states, "param_groups": groups}


def _require_same_checkpoint(trees: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> None:
    for tree, path in zip(trees[1:], paths[1:], strict=True):
        for values_of in (_steps, _shapes):
            if (values := values_of(tree)) != (first := values_of(trees[0])):
                key = next(key for key in {**first, **values} if first.get(key) != values.get(key))
                raise CheckpointError(
                    f"{path} and {paths[0]} differ in {key}, {values.get(key, 'missing')} and "
                    f"{first.get(key, 'missing')}: files of two checkpoints are mixed"
                )


def _steps(tree: Mapping[str, Any]) -> dict[str, float]:
    counted = {
        f"the step of parameter {n}": state["step"] for n, state in tree["base_state"].items() if "step" in state
    }
    counted |= {f"the step of group {n}": g["step"] for n, g in enumerate(tree["param_groups"]) if "step" in g}
    return {key: float(value.read() if isinstance(value, Lazy) else value) for key, value in counted.items()}


def _shapes(tree: Mapping[str, Any]) -> dict[str, list[int]]:
    return {f"the shape of parameter {number}": list(shape) for number, shape in tree["shape_info"].items()}


def _whole(parts: Sequence[Any], shape: torch.Size, kind: str) -> Any:
    first = parts[0]
    if kind == "step" or not isinstance(first, Lazy) or not first.shape:
        return first
    rows = sum(part.shape[0] for part in parts)
    if not shape or rows < shape[0] or rows - shape[0] >= len(parts):
        raise ValueError(f"{rows} rows of {kind} for a tensor of shape {list(shape)}")
    return Lazy(shape, first.dtype, partial(concatenate, list(parts), shape, 0))


def _masters(trees: Sequence[Mapping[str, Any]]) -> dict[Any, list[Any]]:
    # fp32 copies of the weights, by number
    shared = [tree.get("sharded_master_weights") for tree in trees]
    if not all(isinstance(part, Mapping) for part in shared):
        return {}
    return {number: [part[number] for part in shared if part] for number in shared[0] or {}}
