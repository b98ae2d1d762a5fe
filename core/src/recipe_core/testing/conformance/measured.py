"""Checks of an evaluation: training does not notice it, and it measures the same on one process and on two."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recipe_core.checkpoint.lazy import same_bits
from recipe_core.errors import RecipeError
from recipe_core.hooks.kinds import PartKind
from recipe_core.hooks.registry import load
from recipe_core.hooks.specs import Part, Recipe
from recipe_core.hooks.specs.evaluation import EvaluationSpec
from recipe_core.settings.job import Job
from recipe_core.testing.checkpoints import tensors
from recipe_core.testing.conformance.outcome import FailedCheck, SkippedCheck
from recipe_core.testing.conformance.subject import FOUR_STEPS, Plugin
from recipe_core.testing.conformance.toy_runs import silence, toy_job, train_toy
from recipe_core.testing.spawn import spawn
from recipe_core.train.metrics.curves import METRICS, Row, read_rows
from recipe_core.train.start.check import checked_job
from recipe_core.train.start.check.evaluations import evaluation_problems

_CLOSE = 1e-5
_LAYOUTS = ("ddp", "fsdp")
_OFTEN = ("train.eval_every=2",)


@dataclass(frozen=True)
class _Runs:
    """Runs of a recipe that can have the evaluation."""

    name: str
    train: Callable[[int, Path, list[str]], None]
    same: list[str]
    """Overrides under which layouts agree."""


def changes_nothing(plugin: Plugin, spec: EvaluationSpec) -> str:
    """Check that four steps with the evaluation have the losses and the state of four steps without, bit by bit."""
    runs, folder = _runs(plugin, spec), plugin.folder / "evaluations" / spec.name
    runs.train(1, folder / "with", [*_OFTEN, f"evaluations={spec.name}"])
    runs.train(1, folder / "without", [*_OFTEN])
    losses, others = (_losses(folder / name) for name in ("without", "with"))
    for step, loss in losses.items():
        if others.get(step) != loss:
            raise FailedCheck(
                f"step {step}: the loss is {loss} without it and {others.get(step)} with it; leave weights, buffers "
                "and other state of the model as they are"
            )
    state, other = tensors(folder / "without"), tensors(folder / "with")
    if changed := [name for name, value in state.items() if not same_bits(value, other[name])]:
        raise FailedCheck(f"{', '.join(changed[:3])}: differs after a run with it; leave the model as it is")
    return f"{runs.name}: {len(losses)} losses and {len(state)} tensors, bit by bit"


def same_numbers(plugin: Plugin, spec: EvaluationSpec) -> str:
    """Check that it measures the same in one process and on two."""
    runs, folder = _runs(plugin, spec), plugin.folder / "evaluations" / f"{spec.name}-ranks"
    words = [*_OFTEN, *runs.same, f"evaluations={spec.name}"]
    runs.train(1, folder / "single", [*words, "layout=single"])
    alone = _numbers(folder / "single")
    for layout in _LAYOUTS:
        runs.train(2, folder / layout, [*words, f"layout={layout}"])
        for here, there in zip(alone, _numbers(folder / layout), strict=True):
            apart = [name for name, value in here.items() if not _close(value, there.get(name, math.nan))]
            if apart:
                name = apart[0]
                raise FailedCheck(
                    f"layout={layout} on two processes: {name} is {there.get(name)}, and {here[name]} in one; share "
                    "work with model.map, which returns all results on all ranks"
                )
    return f"{runs.name}: {len(alone[0])} numbers on one process, and under {', '.join(_LAYOUTS)} on two"


def _runs(plugin: Plugin, spec: EvaluationSpec) -> _Runs:
    """Runs of the core's toy, of the plugin's recipes or of another that is installed.

    Raises:
        SkippedCheck: none of them can have the evaluation.
    """
    word = f"evaluations={spec.name}"
    job = toy_job(plugin.module, [*_OFTEN, word])
    problems = list(_problems(job))
    if not problems:
        return _Runs("the toy", partial(_train_toy, plugin.module), ["model.dropout=0"])
    own = [recipe.name for recipe in plugin.of(Recipe)]
    for name in [*own, *plugin.registry.names("recipe")]:
        with suppress(RecipeError):
            job = checked_job(plugin.registry, f"{name}:tiny", [*FOUR_STEPS, *_OFTEN, word], 1)
            dropout = [f"model.{one}=0" for one in job.model.spec.free if "dropout" in one]
            return _Runs(name, partial(_train_recipe, name), [*dropout, "train.precision=fp32"])
    raise SkippedCheck(f"the core's toy cannot have it: {problems[0]}; nor can a recipe that is installed")


def _problems(job: Job) -> Iterator[str]:
    parts: dict[PartKind, Part[Any]] = {"model": job.model, "data": job.data, "layout": job.layout}
    yield from evaluation_problems(job.recipe, job.evaluations, job.train, parts)


def _train_toy(module: str, processes: int, out: Path, words: list[str]) -> None:
    train_toy(module, processes, out, *words)


def _train_recipe(recipe: str, processes: int, out: Path, words: list[str]) -> None:
    spawn(_train, processes, recipe, str(out), words)


def _losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_rows(folder / METRICS) if "loss" in row}


def _numbers(folder: Path) -> list[Row]:
    rows = [{name: value for name, value in row.items() if "/" in name} for row in read_rows(folder / METRICS)]
    return [row for row in rows if row]


def _close(one: float, two: float) -> bool:
    return math.isclose(one, two, rel_tol=_CLOSE, abs_tol=_CLOSE)


def _train(recipe: str, out: str, words: list[str]) -> None:
    from recipe_core.train.run import run

    folder = Path(out)
    silence(folder.with_name(f"{folder.name}-logs"))
    run(checked_job(load(), f"{recipe}:tiny", [*FOUR_STEPS, *words], int(os.environ["WORLD_SIZE"])), folder)
