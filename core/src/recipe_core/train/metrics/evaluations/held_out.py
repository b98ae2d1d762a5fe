"""The loss on data that the run does not train on."""

from __future__ import annotations

import math
from collections.abc import Callable

from recipe_core.train.metrics.evaluations.model import EvaluatedModel
from recipe_core.train.metrics.evaluations.settings import HeldOut

_MOST = 700.0
"""Above it, the exponential of a loss is no finite number."""


def build(config: HeldOut, model: EvaluatedModel) -> Callable[[], dict[str, float]]:
    """The values of the loss, and ``perplexity``, the exponential of the loss."""
    samples = model.dataset(config.samples, config.split, config.settings(), config.part)

    def measure() -> dict[str, float]:
        values = model.mean_loss(samples)
        return {**values, "perplexity": math.exp(min(values["loss"], _MOST))}

    return measure
