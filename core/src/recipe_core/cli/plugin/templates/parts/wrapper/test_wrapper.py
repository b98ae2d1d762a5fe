"""The filter keeps near points, and the noise belongs to a sample, not to a batch."""

from typing import Any

import torch
from recipe_core import SampleGenerators

from recipe_new_plugin.plugin import Near, Noise
from recipe_new_plugin.wrapper import near, noisy


class Functions:
    """A run that returns the functions of the wrappers."""

    def filtered(self, samples: Any, function: Any) -> Any:
        return function

    mapped = filtered


def test_points_with_a_large_coordinate_are_left_out() -> None:
    keep: Any = near(Near(most=1.0), None, Functions())  # type: ignore[arg-type]
    assert keep({"points": torch.tensor([[0.5, -0.5], [0.5, -1.5]])}).tolist() == [True, False]


def test_noise_belongs_to_a_sample() -> None:
    change: Any = noisy(Noise(scale=0.5), None, Functions())  # type: ignore[arg-type]
    whole = change({"points": torch.zeros(8, 2)}, SampleGenerators("seed", 0, 8))["points"]
    part = change({"points": torch.zeros(3, 2)}, SampleGenerators("seed", 5, 3))["points"]
    assert torch.equal(whole[5:], part)
    assert 0 < whole.abs().max() < 3
