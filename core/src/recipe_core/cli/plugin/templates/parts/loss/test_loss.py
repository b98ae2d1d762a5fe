"""Values that can be computed by hand; without focus, it is the model's own loss."""

import math

import pytest
import torch

from recipe_new_plugin.loss import build
from recipe_new_plugin.plugin import Focal
from recipe_new_plugin.trial_parts import loss as own


def test_gamma_0_is_cross_entropy() -> None:
    scores, batch = torch.randn(5, 2), {"labels": torch.tensor([0, 1, 1, 0, 1])}
    values = build(Focal(gamma=0.0), own)(scores, batch)
    torch.testing.assert_close(values["loss"], own(scores, batch)["loss"])
    assert values.keys() == {"loss", "accuracy", "hardest"}


def test_samples_that_are_right_count_less() -> None:
    # Probabilities of the labels: 3/4 and 1/4.
    scores, batch = torch.tensor([[math.log(3.0), 0.0], [math.log(3.0), 0.0]]), {"labels": torch.tensor([0, 1])}
    values = build(Focal(gamma=2.0), own)(scores, batch)
    expected = (0.25**2 * -math.log(0.75) + 0.75**2 * -math.log(0.25)) / 2
    assert values["loss"].item() == pytest.approx(expected, rel=1e-6)
    assert values["hardest"].item() == pytest.approx(-math.log(0.25), rel=1e-6)
