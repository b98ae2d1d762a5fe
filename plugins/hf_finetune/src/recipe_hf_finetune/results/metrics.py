"""The metrics of GLUE in NumPy, so that a run downloads nothing for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recipe_hf_finetune.data.tasks import Task

Numbers = NDArray[np.float64]
Labels = NDArray[np.int64]


def measure(task: Task, logits: NDArray[np.floating], labels: NDArray[np.generic]) -> dict[str, float]:
    """The loss and the metrics of ``task``.

    Args:
        task: determines the metrics.
        logits: ``[samples, labels]``; for a regression ``[samples, 1]``.
        labels: ``[samples]``.
    """
    scores = np.asarray(logits, np.float64)
    if task.regression:
        predicted, targets = scores.reshape(-1), np.asarray(labels, np.float64)
        values = {"loss": float(np.mean((predicted - targets) ** 2))}
        return values | {name: CORRELATIONS[name](predicted, targets) for name in task.metrics}
    classes = np.asarray(labels, np.int64)
    values = {"loss": cross_entropy(scores, classes)}
    return values | {name: METRICS[name](scores.argmax(-1), classes, scores.shape[-1]) for name in task.metrics}


def cross_entropy(logits: Numbers, labels: Labels) -> float:
    """Mean of -log softmax(logits)[label], in nats."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-log_probabilities[np.arange(len(labels)), labels].mean())


def confusion(predicted: Labels, labels: Labels, count: int) -> Labels:
    """Confusion matrix ``[count, count]``: rows are true labels, columns predicted ones."""
    matrix = np.zeros((count, count), np.int64)
    np.add.at(matrix, (labels, predicted), 1)
    return matrix


def accuracy(predicted: Labels, labels: Labels, count: int) -> float:
    """Fraction of samples whose predicted label is the true one."""
    return float((predicted == labels).mean())


def f1(predicted: Labels, labels: Labels, count: int) -> float:
    """Harmonic mean of precision and recall: of label 1 where there are two labels, else the mean over all labels.

    A label that is neither true nor predicted for any sample counts 0.
    """
    table = confusion(predicted, labels, count)
    hits, both = np.diag(table), table.sum(0) + table.sum(1)
    each = np.divide(2.0 * hits, both, out=np.zeros(count), where=both > 0)
    return float(each[1] if count == 2 else each.mean())


def matthews(predicted: Labels, labels: Labels, count: int) -> float:
    """Matthews' correlation of predicted and true labels (Gorodkin, 2004, for more than two); 0 if one is constant."""
    table = confusion(predicted, labels, count).astype(np.float64)
    answers, true, total = table.sum(0), table.sum(1), table.sum()
    numerator = np.trace(table) * total - answers @ true
    denominator = np.sqrt(total**2 - answers @ answers) * np.sqrt(total**2 - true @ true)
    return float(numerator / denominator) if denominator else 0.0


def pearson(predicted: Numbers, targets: Numbers) -> float:
    """Pearson's correlation; 0 if one is constant."""
    x, y = predicted - predicted.mean(), targets - targets.mean()
    denominator = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / denominator) if denominator else 0.0


def spearman(predicted: Numbers, targets: Numbers) -> float:
    """Pearson's correlation of ranks; equal values share their mean rank."""
    return pearson(_ranks(predicted), _ranks(targets))


def _ranks(values: Numbers) -> Numbers:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: Numbers = (last - (counts - 1) / 2)[inverse]
    return ranks


METRICS: dict[str, Callable[[Labels, Labels, int], float]] = {"accuracy": accuracy, "f1": f1, "matthews": matthews}
CORRELATIONS: dict[str, Callable[[Numbers, Numbers], float]] = {"pearson": pearson, "spearman": spearman}
