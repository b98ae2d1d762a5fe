"""The data wrappers."""

from __future__ import annotations

from recipe_core import Batch, SampleGenerators, Samples, WrapperRun
from torch import Tensor

from recipe_new_plugin.plugin import Near, Noise


def near(config: Near, samples: Samples, run: WrapperRun) -> Samples:
    """Return the samples without large coordinates; sample n is the n-th of them."""

    def keep(batch: Batch) -> Tensor:
        return batch["points"].abs().amax(dim=-1) <= config.most

    return run.filtered(samples, keep)


def noisy(config: Noise, samples: Samples, run: WrapperRun) -> Samples:
    """Return the samples with noise, from a generator of each sample: the same on every rank and after a stop."""

    def change(batch: Batch, generators: SampleGenerators) -> Batch:
        uniform = generators.rand(12, batch["points"].shape[-1])
        return {**batch, "points": batch["points"] + config.scale * (uniform.sum(dim=1) - 6)}

    return run.mapped(samples, change)
