"""The tasks of GLUE: columns, labels, metrics, and how many training samples each has. No torch here.

Wang and others, "GLUE: a multi-task benchmark and analysis platform for natural language understanding" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """Facts about a task before its data are read."""

    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """In the order of their numbers."""
    metrics: tuple[str, ...] = ("accuracy", "f1")
    """Names of :mod:`recipe_hf_finetune.results.metrics`, the one that counts first."""
    train_samples: int = 0
    regression: bool = False
    """The label is a number, and the model gives one."""


OWN = Task()
"""Files of one's own."""
PAIRS = Task(("sentence1", "sentence2"), ("different", "equivalent"))
"""Pairs that are made of Python's text."""
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
