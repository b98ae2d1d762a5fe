"""Remarks on settings of a job that other settings or the data leave without effect. No torch here."""

from __future__ import annotations

from collections.abc import Iterator

from recipe_core.hooks.kinds import PARTS
from recipe_core.hooks.specs.loop import OPTIMIZER_SETTINGS, SCHEDULE_SETTINGS
from recipe_core.hooks.train import Train, remarks
from recipe_core.settings.describe import written
from recipe_core.settings.job import Job


def remarks_of(job: Job) -> list[str]:
    """Return a line for each remark, with the setting and its value.

    Remarks are not mistakes; for those, see :mod:`recipe_core.train.start.check`.
    """
    own = dict(remarks(job.train, job.recipe.train))
    remarks_by_name = {**own, **dict(_unused(job)), **_evaluation(job)}
    lines = [_line("train", name, getattr(job.train, name), text) for name, text in remarks_by_name.items()]
    for kind in PARTS:
        config = getattr(job, kind).config
        lines += [_line(kind, name, getattr(config, name), text) for name, text in remarks(config)]
    return lines


def _line(section: str, name: str, value: object, text: str) -> str:
    return f"{section}.{name}={written(value)}: {text}"


def _unused(job: Job) -> Iterator[tuple[str, str]]:
    # Settings that only other optimizers and schedules use, unless they have the recipe's or the default values.
    for kind, names in (("optimizer", OPTIMIZER_SETTINGS), ("schedule", SCHEDULE_SETTINGS)):
        spec = getattr(job, kind).spec
        for name in names:
            unchanged = getattr(job.train, name) in (getattr(job.recipe.train, name), getattr(Train, name))
            if name not in spec.uses and not unchanged:
                yield name, f"{kind}={spec.name} does not use it"


def _evaluation(job: Job) -> dict[str, str]:
    wanted, available = job.train.eval_samples, job.facts.data.valid_samples if job.facts.data else None
    if not job.train.eval_every or not available or wanted <= available:
        return {}
    return {"eval_samples": f"there are {available:,}, so that an evaluation takes some of them several times"}
