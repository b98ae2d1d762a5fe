"""The evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from recipe_core import EvaluatedModel, output_of

from recipe_new_plugin.plugin import Calibration


def build(config: Calibration, model: EvaluatedModel) -> Callable[[], Mapping[str, float]]:
    """Return a function that measures the model as it is now; every rank calls it at the same moment."""
    samples = model.dataset(config.samples)

    def sums(batch: tuple[int, int]) -> tuple[float, int]:
        given = samples.read(*batch)
        shares = output_of(model.forward(given), "logits").float().softmax(-1)
        found = shares.max(-1)
        return float(found.values.sum()), int((found.indices == given["labels"]).sum())

    def measure() -> Mapping[str, float]:
        # The ranks share the batches, and all of them get all results.
        confidence, right = zip(*model.map(sums, samples.batches(), uniform=True), strict=True)
        return {"confidence": sum(confidence) / samples.count, "accuracy": sum(right) / samples.count}

    return measure
