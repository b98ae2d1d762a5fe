"""The metrics of GLUE, by NumPy alone: nothing is fetched when a run needs them."""

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
        task: says which metrics.
        logits: ``[samples, labels]``; of a regression ``[samples, 1]``.
        labels: ``[samples]``.
    """
    scores = np.asarray(logits, np.float64)
    if task.regression:
        predicted, wanted = scores.reshape(-1), np.asarray(labels, np.float64)
        values = {"loss": float(np.mean((predicted - wanted) ** 2))}
        return values | {name: CORRELATIONS[name](predicted, wanted) for name in task.metrics}
    classes = np.asarray(labels, np.int64)
    values = {"loss": cross_entropy(scores, classes)}
    return values | {name: METRICS[name](scores.argmax(-1), classes, scores.shape[-1]) for name in task.metrics}


def cross_entropy(logits: Numbers, labels: Labels) -> float:
    """Mean of -log softmax(logits)[label], in nats."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_shares = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-log_shares[np.arange(len(labels)), labels].mean())


def confusion(predicted: Labels, labels: Labels, count: int) -> Labels:
    """``[count, count]``: how many samples of each label (row) were given each label (column)."""
    matrix = np.zeros((count, count), np.int64)
    np.add.at(matrix, (labels, predicted), 1)
    return matrix


def accuracy(predicted: Labels, labels: Labels, count: int) -> float:
    """Share of samples that were given their label."""
    return float((predicted == labels).mean())


def f1(predicted: Labels, labels: Labels, count: int) -> float:
    """Harmonic mean of precision and recall: of label 1 where there are two labels, else the mean over all labels.

    A label that neither stands nor is given counts 0.
    """
    table = confusion(predicted, labels, count)
    hits, both = np.diag(table), table.sum(0) + table.sum(1)
    each = np.divide(2.0 * hits, both, out=np.zeros(count), where=both > 0)
    return float(each[1] if count == 2 else each.mean())


def matthews(predicted: Labels, labels: Labels, count: int) -> float:
    """Matthews' correlation of given and true labels (Gorodkin, 2004, for more than two); 0 where one is constant."""
    table = confusion(predicted, labels, count).astype(np.float64)
    answers, true, total = table.sum(0), table.sum(1), table.sum()
    above = np.trace(table) * total - answers @ true
    below = np.sqrt(total**2 - answers @ answers) * np.sqrt(total**2 - true @ true)
    return float(above / below) if below else 0.0


def pearson(predicted: Numbers, wanted: Numbers) -> float:
    """Pearson's correlation; 0 where one is constant."""
    one, other = predicted - predicted.mean(), wanted - wanted.mean()
    below = np.sqrt((one @ one) * (other @ other))
    return float(one @ other / below) if below else 0.0


def spearman(predicted: Numbers, wanted: Numbers) -> float:
    """Pearson's correlation of ranks; equal values share their mean rank."""
    return pearson(_ranks(predicted), _ranks(wanted))


def _ranks(values: Numbers) -> Numbers:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: Numbers = (last - (counts - 1) / 2)[places]
    return ranks


METRICS: dict[str, Callable[[Labels, Labels, int], float]] = {"accuracy": accuracy, "f1": f1, "matthews": matthews}
CORRELATIONS: dict[str, Callable[[Numbers, Numbers], float]] = {"pearson": pearson, "spearman": spearman}
