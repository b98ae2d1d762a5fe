"""The evaluation ``cloze``, and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from recipe_core import Dataset, EvaluationSpec, Model, Part, Train, hookimpl


@dataclass(frozen=True, kw_only=True)
class Cloze:
    """Questions with several answers, of which the first one is right."""

    file: str = ""
    """A question a line, separated by tabs: the beginning of a text, its right continuation, and wrong ones. Empty:
    some questions that this plugin brings."""
    per_token: bool = True
    """Compare the mean log-likelihood of a token, so that short answers have no advantage."""


def problems(config: Cloze, train: Train, model: Part[Model] | None, data: Part[Dataset] | None) -> Iterable[str]:
    """Yield a problem if the file is missing; `recipe check` and the start of a run report it."""
    if config.file and not Path(config.file).is_file():
        yield f"file: {config.file}: there is no such file; expected questions, one a line"


@hookimpl
def register_evaluations() -> Iterable[EvaluationSpec]:
    """The evaluation."""
    yield EvaluationSpec(
        name="cloze",
        build="recipe_cloze.evaluation:build",
        config=Cloze,
        takes=("score",),
        fatal=False,
        problems="recipe_cloze.plugin:problems",
        summary="share of questions whose right continuation is the likeliest one",
    )
