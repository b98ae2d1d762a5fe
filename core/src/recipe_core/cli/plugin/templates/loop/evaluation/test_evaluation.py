"""Numbers that can be computed by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipe_new_plugin.evaluation import build
from recipe_new_plugin.plugin import Calibration


def test_confidence_and_accuracy() -> None:
    # Probabilities of the predicted classes: 3/4 and 4/5; the second prediction is wrong.
    batch = {"scores": torch.log(torch.tensor([[3.0, 1.0], [1.0, 4.0]])), "labels": torch.tensor([0, 0])}
    samples = SimpleNamespace(count=2, read=lambda start, count: batch, batches=lambda: [(0, 2)])
    model: Any = SimpleNamespace(
        dataset=lambda count: samples,
        forward=lambda given: given["scores"],
        map=lambda function, items, uniform: [function(item) for item in items],
    )
    numbers = build(Calibration(samples=2), model)()
    assert numbers == pytest.approx({"confidence": (0.75 + 0.8) / 2, "accuracy": 0.5})
