"""The samples."""

from __future__ import annotations

import numpy as np
import torch
from recipe_core import Batch, Run

from recipe_new_plugin.settings import Steps


class Counting:
    """Samples; sample n depends on the seed, the split and n only."""

    def __init__(self, config: Steps, seed: int) -> None:
        self.config, self.seed = config, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        """Return ``tokens`` and ``labels``, shifted by one: ``[count, sequence]``."""
        rows = []
        for number in range(start, start + count):
            random = np.random.default_rng([self.seed, split == "valid", number])
            first, step = random.integers(self.config.vocabulary, size=2)
            rows.append((first + step * np.arange(self.config.sequence + 1)) % self.config.vocabulary)
        tokens = torch.from_numpy(np.stack(rows))
        return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}


def build(config: Steps, run: Run) -> Counting:
    """Return an endless stream of samples; the core divides it among the ranks."""
    return Counting(config, run.train.seed)
