"""The tasks of GLUE: columns, labels, metrics and number of training samples. No torch here.

Wang and others, "GLUE: a multi-task benchmark and analysis platform for natural language understanding" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Columns, labels, metrics and size of a task."""

    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """In the order of their numbers."""
    metrics: tuple[str, ...] = ("accuracy", "f1")
    """Names in :mod:`recipe_hf_finetune.results.metrics`, the main one first."""
    train_samples: int = 0
    regression: bool = False
    """The label is a number, which the model predicts."""


OWN = Task()
"""Files of the user, without ``data.task``."""
PAIRS = Task(("sentence1", "sentence2"), ("different", "equivalent"))
"""Pairs made from Python's text."""
_PAIR = ("sentence1", "sentence2")
_ENTAILED = ("entailment", "not_entailment")
GLUE = {
    "cola": Task(("sentence",), ("unacceptable", "acceptable"), ("matthews",), 8551),
    "mnli": Task(("premise", "hypothesis"), ("entailment", "neutral", "contradiction"), ("accuracy",), 392702),
    "mrpc": Task(_PAIR, ("not_equivalent", "equivalent"), ("accuracy", "f1"), 3668),
    "qnli": Task(("question", "sentence"), _ENTAILED, ("accuracy",), 104743),
    "qqp": Task(("question1", "question2"), ("not_duplicate", "duplicate"), ("accuracy", "f1"), 363846),
    "rte": Task(_PAIR, _ENTAILED, ("accuracy",), 2490),
    "sst2": Task(("sentence",), ("negative", "positive"), ("accuracy",), 67349),
    "stsb": Task(_PAIR, (), ("pearson", "spearman"), 5749, regression=True),
    "wnli": Task(_PAIR, ("not_entailment", "entailment"), ("accuracy",), 635),
}
