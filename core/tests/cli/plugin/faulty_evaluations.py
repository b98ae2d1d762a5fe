"""A plugin whose evaluations have a mistake each, or do not fit the toy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from recipe_core import EvaluatedModel, EvaluationSpec, NoSettings, Train, hookimpl


def moves(config: NoSettings, model: EvaluatedModel) -> Callable[[], dict[str, float]]:
    """Changes a weight of the model."""

    def measure() -> dict[str, float]:
        module: Any = model.access.parallel.module  # type: ignore[attr-defined]
        with torch.no_grad():
            next(module.parameters()).mul_(0.9)
        return {"number": 1.0}

    return measure


def partial(config: NoSettings, model: EvaluatedModel) -> Callable[[], dict[str, float]]:
    """Measures as much as one rank has."""
    return lambda: {"ranks": float(model.access.data_ranks)}


def needs_bf16(config: NoSettings, train: Train, model: Any, data: Any) -> Iterator[str]:
    if train.precision != "bf16":
        yield "it needs train.precision=bf16"


@hookimpl
def register_evaluations() -> Iterable[EvaluationSpec]:
    """All of them."""
    here = __name__
    yield EvaluationSpec(name="moves", build=f"{here}:moves", summary="a weight that is changed")
    yield EvaluationSpec(name="partial", build=f"{here}:partial", summary="a number of one rank")
    yield EvaluationSpec(name="picky", build=f"{here}:partial", problems=f"{here}:needs_bf16", summary="only with bf16")
