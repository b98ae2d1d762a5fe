"""Questions, and the share that a model answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from recipe_cloze.plugin import Cloze
from recipe_core import ConfigError, EvaluatedModel, Likelihood

Question = tuple[str, list[str]]
"""The beginning of a text, and its continuations, the right one first."""
QUESTIONS: list[Question] = [
    ("The list is sorted in ascending ", ["order", "colour", "water"]),
    ("Return True if the string is ", ["empty", "angry", "Tuesday"]),
    ("import os\nimport ", ["sys", "the", "banana"]),
    ("for i in range(", ["10", "the", "hello"]),
]


def build(config: Cloze, model: EvaluatedModel) -> Callable[[], dict[str, float]]:
    """``accuracy``, and ``margin``: by how much the right answer is likelier than the best wrong one, in nats.

    Raises:
        ConfigError: the file has no question, or a line is none.
    """
    questions = list(_read(config.file)) if config.file else QUESTIONS
    model.scorer  # noqa: B018  # a model without a tokenizer is refused before the first step

    def worth(likelihood: Likelihood) -> float:
        return likelihood.total / (likelihood.tokens if config.per_token else 1)

    def measure() -> dict[str, float]:
        pairs = [(beginning, answer) for beginning, answers in questions for answer in answers]
        found = iter(model.loglikelihoods(pairs))  # shared among the ranks; all of them get all results
        margins = []
        for _, answers in questions:
            right, *wrong = [worth(next(found)) for _ in answers]
            margins.append(right - max(wrong))
        return {
            "accuracy": sum(margin > 0 for margin in margins) / len(margins),
            "margin": sum(margins) / len(margins),
        }

    return measure


def _read(file: str) -> Iterator[Question]:
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        beginning, *answers = line.split("\t")
        if len(answers) < 2 or not all(answers):
            raise ConfigError(
                f"evaluation.cloze.file: {file}, line {number}: expected a beginning, its right continuation and wrong "
                f"ones, separated by tabs; got {line!r:.60}"
            )
        yield beginning, answers
    if not lines:
        raise ConfigError(f"evaluation.cloze.file: {file}: it holds no question")
