"""Checks of a recipe through the real command: training, exact resume, and equal losses under every layout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from recipe_core.errors import RecipeError
from recipe_core.hooks.registry import Registry, load
from recipe_core.hooks.specs import Recipe
from recipe_core.settings.job import Job
from recipe_core.testing.conformance.outcome import FailedCheck, location, root
from recipe_core.testing.conformance.subject import FOUR_STEPS, Plugin
from recipe_core.testing.conformance.toy_runs import silence
from recipe_core.testing.runs import run_tiny
from recipe_core.testing.spawn import spawn
from recipe_core.train.metrics.curves import METRICS, read_rows
from recipe_core.train.start.check import checked_job

Cases = Mapping[str, Sequence[str]]
"""Overrides of runs, by the name of the layout."""
STEPS = 4
_CLOSE = 1e-5
"""Largest difference of a loss between layouts, which sum in another order."""


def trains(plugin: Plugin, recipe: Recipe) -> str:
    """Check that the variant ``tiny`` trains to the end."""
    run = plugin.whole[recipe.name]
    if sorted(step for step in run.column() if step) != [1, 2, 3, 4] or run.results["step"] != STEPS:
        raise FailedCheck(f"it logged the losses of steps {sorted(run.column())}; expected 1 to {STEPS}")
    return f"{STEPS} steps, loss {run.column()[1]:.4f} to {run.column()[STEPS]:.4f}"


def resumes(plugin: Plugin, recipe: Recipe) -> str:
    """Check that a run resumed after half of the steps has the losses of an uninterrupted run, to the last bit."""
    return resumes_exactly(plugin, recipe.name, plugin.folder / "resumed" / recipe.name)


def resumes_exactly(plugin: Plugin, recipe: str, out: Path, *overrides: str) -> str:
    """Compare a resumed run of ``recipe`` with an uninterrupted one, both with ``overrides``."""
    whole = (
        run_tiny(recipe, out.with_name(f"{out.name}-whole"), *FOUR_STEPS, *overrides)
        if overrides
        else plugin.whole[recipe]
    )
    half = run_tiny(recipe, out, *FOUR_STEPS, *overrides, "train.stop_after=2")
    if half.results["step"] != 2:
        raise FailedCheck(f"train.stop_after=2: it stopped after {half.results['step']} steps")
    resumed = run_tiny(recipe, out, *FOUR_STEPS, *overrides, "train.stop_after=2").column()
    return same_losses(whole.column(), resumed)


def same_losses(whole: Mapping[int, float], resumed: Mapping[int, float]) -> str:
    """Compare the losses of an uninterrupted run with those of a resumed run.

    Raises:
        FailedCheck: a loss differs, or is missing.
    """
    for step, loss in whole.items():
        if resumed.get(step) != loss:
            raise FailedCheck(
                f"step {step}: the loss is {loss} without a stop and {resumed.get(step)} after one; what influences it "
                "must follow from the seed and the step, or stand in the checkpoint"
            )
    return f"{len(whole)} losses, to the last bit"


def layouts_agree(plugin: Plugin, recipe: Recipe) -> str:
    """Check that every layout of the model gives the losses of one process, on one process and on two."""
    refused: dict[str, str] = {}
    cases, alone = {1: dict(_cases(plugin, recipe, 1, refused))}, "single"
    if alone not in cases[1]:
        raise FailedCheck(f"one process does not fit it: {refused[alone]}")
    cases[2] = dict(_cases(plugin, recipe, 2, refused))
    losses = {
        (name, count): curve
        for count, overrides in cases.items()
        for name, curve in _curves(recipe, overrides, count, plugin.folder / "layouts" / recipe.name).items()
    }
    expected = losses.pop((alone, 1))
    apart = {key: _distance(expected, curve) for key, curve in losses.items()}
    problems = [
        f"layout={name} on {count} process{'es' * (count > 1)}: a loss is {distance:.1e} off that of one process "
        f"(expected at most {_CLOSE:.0e})"
        for (name, count), distance in apart.items()
        if not distance <= _CLOSE
    ]
    if problems:
        raise FailedCheck("; ".join(problems))
    ran = [", ".join(name for name, processes in losses if processes == count) or "nothing" for count in (1, 2)]
    text = f"{ran[0]} on one process, {ran[1]} on two: within {max(apart.values(), default=0):.0e}"
    done = {alone, *(name for name, _ in losses)}
    left_out = {name: reason for name, reason in refused.items() if name not in done}
    return "; ".join([text, *(f"not {name}: {reason}" for name, reason in left_out.items())])


def _cases(plugin: Plugin, recipe: Recipe, processes: int, refused: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Name and overrides of each layout that takes the recipe; ``refused`` collects the reasons of the others."""
    common = _comparable_overrides(plugin.tiny(recipe))
    for layout in plugin.registry.names("layout"):
        for name, overrides in _layout_overrides(plugin.registry, layout):
            try:
                checked_job(plugin.registry, f"{recipe.name}:tiny", [*common, *overrides], processes)
            except RecipeError as error:
                refused[name] = _first_reason(error)
            else:
                yield name, [*common, *overrides]


def _first_reason(error: RecipeError) -> str:
    """The first of several problems, without its remedy."""
    first = next(line.strip(" -") for line in str(error).splitlines() if not line.endswith(" problems:"))
    return first.partition(";")[0].removeprefix("layout: ")


def _layout_overrides(registry: Registry, layout: str) -> Iterator[tuple[str, list[str]]]:
    try:
        config = registry.get("layout", layout).config
    except RecipeError:  # several plugins claim the name
        return
    yield layout, [f"layout={layout}"]
    if "sequence_parallel" in [field.name for field in fields(config)] and layout == "tp":
        yield "tp with sequence_parallel", [f"layout={layout}", "layout.sequence_parallel=true"]


def _comparable_overrides(job: Job) -> list[str]:
    """Overrides under which layouts agree: four equal micro batches, no dropout, no rounding to 16 bits.

    They stop before the last step, after which a recipe may do more than train.
    """
    batch = 4 * max(1, job.train.global_batch // 4)
    needed = job.callbacks or job.evaluations  # which may need a validation
    evaluations = [] if needed else ["train.eval_every=0"]
    no_dropout = [f"model.{name}=0" for name in job.model.spec.free if "dropout" in name]
    return [
        *FOUR_STEPS, "train.steps=5", "train.stop_after=4", f"train.global_batch={batch}",
        f"train.micro_batch={batch // 4}", "train.precision=fp32", *evaluations, *no_dropout,
    ]  # fmt: skip


def _curves(recipe: Recipe, cases: Cases, processes: int, folder: Path) -> dict[str, dict[int, float]]:
    """The losses by step of all ``cases``.

    The same processes run all cases in turn. A recipe with its own training loop, which may need its own environment,
    runs as a command per case.
    """
    out = folder / str(processes)
    if recipe.run == Recipe.run:
        spawn(run_in_turn, processes, recipe.name, dict(cases), str(out))
    else:
        for name, overrides in cases.items():
            run_tiny(recipe.name, out / name, *overrides, "--processes", str(processes))
    rows = {name: read_rows(out / name / METRICS) for name in cases}
    return {name: {row["step"]: row["loss"] for row in rows[name] if "loss" in row} for name in cases}


def run_in_turn(recipe: str, cases: Cases, folder: str) -> None:
    """Train the variant ``tiny`` once for each case, on every rank; output goes into a file of ``folder``."""
    from recipe_core.hooks.specs import load as load_function

    silence(Path(folder))
    registry, store = load(), os.environ.get("RECIPE_STORE")
    for number, (name, overrides) in enumerate(cases.items()):
        os.environ["RECIPE_STORE"] = f"{store}-{number}"
        job = checked_job(registry, f"{recipe}:tiny", overrides, int(os.environ["WORLD_SIZE"]))
        try:
            load_function(job.recipe.run, f"recipe {recipe!r}")(job, Path(folder, name))
        except Exception as error:
            cause = root(error)
            raise FailedCheck(f"layout={name}: {type(cause).__name__}: {cause} ({location(cause)})") from error
        _forget_meshes()


def _forget_meshes() -> None:
    """Clear DTensor's cache, which refers to meshes of the last run, whose process groups are destroyed."""
    try:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    except ImportError:  # not in every release
        return
    _clear_sharding_prop_cache()


def _distance(expected: Mapping[int, float], curve: Mapping[int, float]) -> float:
    """The largest difference of a loss; infinite if steps are missing."""
    if expected.keys() != curve.keys():
        return float("inf")
    return max(abs(expected[step] - curve[step]) for step in expected)
