"""The samples."""

from __future__ import annotations

import numpy as np
import torch
from recipe_core import Batch, Run

from recipe_new_plugin.settings import Steps


class Counting:
    """Sample n is a function of the seed, the split and n: whoever reads it, and when, gets the same."""

    def __init__(self, config: Steps, seed: int) -> None:
        self.config, self.seed = config, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        """``tokens`` and ``labels``, the same moved by one: ``[count, sequence]``."""
        rows = []
        for number in range(start, start + count):
            random = np.random.default_rng([self.seed, split == "valid", number])
            first, step = random.integers(self.config.vocabulary, size=2)
            rows.append((first + step * np.arange(self.config.sequence + 1)) % self.config.vocabulary)
        tokens = torch.from_numpy(np.stack(rows))
        return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}


def build(config: Steps, run: Run) -> Counting:
    """An endless order of samples; the core divides it between the ranks."""
    return Counting(config, run.train.seed)
