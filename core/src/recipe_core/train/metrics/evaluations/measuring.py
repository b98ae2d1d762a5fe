"""All evaluations of a run, as the loop calls them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from torch import Tensor, nn

from recipe_core.engine.protocol import Engine
from recipe_core.errors import LostRankError, PluginError, RecipeError
from recipe_core.hooks.inference import Evaluation
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import Part
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.launch.watch.heartbeat import beat
from recipe_core.layouts.built import as_part_error, type_name
from recipe_core.train.metrics.evaluations.access import undisturbed
from recipe_core.train.metrics.evaluations.model import DONE, Access, EvaluatedModel, blamed

Measure = Callable[[], Any]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_CLOSE = 1e-6
"""Relative difference of a number between ranks."""


@dataclass
class Evaluations:
    """All evaluations of a run, in the order of ``train.evaluations``.

    An error names the evaluation; unless the contribution says ``fatal=False``, it ends the run.
    """

    warn: Callable[[str], None] = field(default=lambda text: None)
    """Takes a message about an evaluation that failed and is not fatal."""
    _open: list[tuple[EvaluationSpec, EvaluatedModel, Measure]] = field(default_factory=list)

    def build(self, parts: Sequence[Part[EvaluationSpec]], access: Access, options: Evaluation | None = None) -> None:
        """Build the evaluations ``parts``; ``options`` are those of ``recipe eval``.

        Raises:
            PluginError: one raises, or returns nothing that can be called.
        """
        for part in parts:
            spec: EvaluationSpec = part.spec
            own = EvaluatedModel(access=access, spec=spec, options=options or Evaluation())
            with as_part_error(spec):
                measure = part.build(part.config, own)
            if not callable(measure):
                raise PluginError(
                    f"{code_of(spec)} returned {type_name(measure)}; expected a function measure() -> numbers by name"
                )
            self._open.append((spec, own, measure))

    def measure(
        self, engine: Engine, module: nn.Module, seed: int, interrupted: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Return the numbers of all evaluations as ``NAME/number``, the same on all ranks; None if ``interrupted``.

        The generators, the mode of the module and the gradients are as before.

        Raises:
            PluginError: an evaluation raises, or returns anything else than the same finite numbers on all ranks.
        """
        found: dict[str, float] = {}
        for spec, model, measure in list(self._open):
            if interrupted():
                return None
            beat.enter("evaluation")
            with undisturbed(engine, module, seed):
                values = self._measured(spec, model, measure, engine.rank)
            found |= {f"{spec.name}/{name}": value for name, value in values.items()}
        return found

    def _measured(
        self, spec: EvaluationSpec, model: EvaluatedModel, measure: Measure, rank: int
    ) -> Mapping[str, float]:
        values: Mapping[str, float] = {}
        problem = ""
        try:
            with blamed(spec):
                values = _checked(measure(), spec)
        except LostRankError:
            raise
        except RecipeError as error:
            if spec.fatal:  # the other ranks learn of it as this one ends
                raise
            problem = str(error)
        everyone = _exchanged(model.access, values, problem)
        try:
            return _agreed(everyone, spec)
        except PluginError as error:
            if spec.fatal:
                raise
            if rank == 0:
                self.warn(f"{error}; training goes on without it")
            self._open = [one for one in self._open if one[0] is not spec]
            return {}


def _exchanged(access: Access, values: Mapping[str, float], problem: str) -> list[tuple[Mapping[str, float], str]]:
    """Numbers and problems of all ranks, once each has measured."""
    while True:  # a rank that shares work with one that has failed learns of it by its message, and comes here too
        everyone = access.gather((DONE, values, problem))
        if all(kind == DONE for kind, _, _ in everyone):
            return [(found, text) for _, found, text in everyone]


def _checked(values: object, spec: EvaluationSpec) -> dict[str, float]:
    code = f"{code_of(spec)}: measure"
    if not isinstance(values, Mapping) or not values:
        raise PluginError(f"{code} returned {type_name(values)}; expected a dict of numbers by name")
    return {_named(name, code): _number(name, value, code) for name, value in values.items()}


def _named(name: object, code: str) -> str:
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise PluginError(f"{code} returned the name {name!r}; expected letters, digits, '_', '-' and '.'")


def _number(name: str, value: object, code: str) -> float:
    if isinstance(value, Tensor):
        if value.dim() or value.requires_grad:
            kind = "with a gradient" if value.requires_grad else f"of shape {list(value.shape)}"
            raise PluginError(
                f"{code} returned {name!r} as a tensor {kind}; expected a number, such as float(value.detach().mean())"
            )
        value = value.item()
    if not isinstance(value, Real):
        raise PluginError(f"{code} returned {name!r} as {value!r:.60}; expected a number")
    if not math.isfinite(number := float(value)):
        raise PluginError(f"{code} returned {name!r} as {number}; expected a finite number")
    return number


def _agreed(everyone: Sequence[tuple[Mapping[str, float], str]], spec: EvaluationSpec) -> Mapping[str, float]:
    """The numbers of rank 0, which those of all others must equal."""
    first, _ = everyone[0]
    for number, (values, problem) in enumerate(everyone):
        if problem:
            raise PluginError(problem)
        if values.keys() != first.keys():
            raise PluginError(
                f"{code_of(spec)}: measure returned {', '.join(values)} on rank {number} and {', '.join(first)} on "
                "rank 0; expected the same numbers on all ranks"
            )
        for name, value in values.items():
            if not math.isclose(value, first[name], rel_tol=_CLOSE):
                raise PluginError(
                    f"{code_of(spec)}: measure returned {name!r} as {value:.6g} on rank {number} and as "
                    f"{first[name]:.6g} on rank 0; share the work with model.map, which returns all results on all "
                    "ranks"
                )
    return first
