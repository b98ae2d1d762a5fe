"""Checks of evaluations: what they take of the model, and when they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_core.hooks.kinds import PartKind
from recipe_core.hooks.specs import CORE_LOOP, Model, Part, Recipe
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.hooks.target import call_list
from recipe_core.hooks.train import Train

_FUNCTIONS = {"score": ("scores no texts", "Model.score"), "generate": ("does not generate", "Model.generate")}
"""By what is taken: the words for a model without such a function, and the field that names it."""


def evaluation_problems(
    recipe: Recipe, evaluations: Sequence[Part[EvaluationSpec]], train: Train, parts: Mapping[PartKind, Part[Any]]
) -> Iterator[str]:
    """Yield what keeps the run from having its evaluations."""
    if not evaluations:
        return
    if recipe.run != CORE_LOOP:
        yield f"train.evaluations: {recipe.name} trains in a loop of its own, which measures none; leave them out"
        return
    if not train.eval_every:
        yield "train.evaluations: they are measured with the validation; set train.eval_every"
    engine = parts.get("engine")
    if engine is not None and engine.spec.traced:
        yield (
            f"train.evaluations: engine {engine.spec.name} would compile a graph for each shape that they use; measure "
            "them of the finished run: recipe eval RUN --tasks NAME"
        )
    for part in evaluations:
        spec = part.spec
        where = f"evaluation.{spec.name}"
        if (model := parts.get("model")) is not None:
            yield from (f"train.evaluations: {problem}" for problem in missing(spec, model))
        if "generate" in spec.takes and getattr(parts.get("layout"), "config", None) is not None:
            stages = parts["layout"].config.pp
            if stages > 1:
                yield (
                    f"train.evaluations: {spec.name} generates, which needs the whole model on each rank, and under "
                    f"layout={parts['layout'].spec.name} each holds one of {stages} stages; measure it of the finished "
                    f"run: recipe eval RUN --tasks {spec.name}"
                )
        yield from (f"{where}: {text}" for text in own_problems(part, train, parts.get("model"), parts.get("data")))


def missing(spec: EvaluationSpec, model: Part[Model]) -> Iterator[str]:
    """Yield a problem for each thing that the evaluation takes and the model cannot give."""
    for word, (lack, field) in _FUNCTIONS.items():
        if word in spec.takes and not getattr(model.spec, word):
            yield (
                f"{spec.name} takes {word}, and model {model.spec.name} {lack} (its plugin names no {field}); leave "
                "it out"
            )


def own_problems(
    part: Part[EvaluationSpec], train: Train, model: Part[Model] | None, data: Part[Any] | None
) -> list[str]:
    """Return the problems that the evaluation itself finds."""
    if not part.spec.problems:
        return []
    problems: list[str] = call_list(
        part.spec.problems, f"evaluation {part.spec.name!r}", part.config, train, model, data
    )
    return problems
