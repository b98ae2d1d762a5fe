"""The metrics of GLUE against scikit-learn, SciPy and results by hand."""

from __future__ import annotations

import numpy as np
import pytest

from recipe_hf_finetune.data.tasks import GLUE
from recipe_hf_finetune.results.metrics import accuracy, cross_entropy, f1, matthews, measure, pearson, spearman


def test_by_hand() -> None:
    predicted, true = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    assert accuracy(predicted, true, 2) == 3 / 5
    assert f1(predicted, true, 2) == 2 * 2 / (3 + 3)
    assert matthews(predicted, true, 2) == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))
    assert matthews(np.ones(5, int), true, 2) == 0
    assert f1(np.zeros(5, int), np.zeros(5, int), 2) == 0
    assert spearman(np.array([1.0, 2, 2, 9]), np.array([10.0, 20, 20, 21])) == pytest.approx(1)
    assert pearson(np.array([1.0, 2, 3]), np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert cross_entropy(np.array([[1e4, 0.0], [0.0, 0.0]]), np.array([0, 1])) == pytest.approx(np.log(2) / 2)


def test_a_regression() -> None:
    values = measure(GLUE["stsb"], np.array([[1.0], [2.0], [4.0]]), np.array([1.0, 3.0, 4.0]))
    assert values["loss"] == pytest.approx(1 / 3)
    assert list(values) == ["loss", "pearson", "spearman"]


@pytest.mark.peer
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("labels", [2, 5])
def test_equal_to_scikit_learn(labels: int) -> None:
    peer = pytest.importorskip("sklearn.metrics")
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(labels)
    true = draw.integers(0, labels, 400)
    predicted = np.where(draw.random(400) < 0.5, true, draw.integers(0, labels, 400))
    assert accuracy(predicted, true, labels) == peer.accuracy_score(true, predicted)
    average = "binary" if labels == 2 else "macro"
    assert f1(predicted, true, labels) == pytest.approx(peer.f1_score(true, predicted, average=average), rel=1e-12)
    assert matthews(predicted, true, labels) == pytest.approx(peer.matthews_corrcoef(true, predicted), rel=1e-12)
    x, y = draw.integers(0, 9, 400) * 0.5, true + draw.normal(size=400)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], rel=1e-12)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], rel=1e-12)
    logits = draw.normal(size=(400, labels)) * 5
    assert cross_entropy(logits, true) == pytest.approx(
        peer.log_loss(true, np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    )
