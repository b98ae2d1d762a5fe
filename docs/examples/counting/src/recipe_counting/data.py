"""The samples."""

from __future__ import annotations

import numpy as np
import torch

from recipe_core import Batch, Run
from recipe_counting.plugin import Digits


class Counting:
    """Sample n depends only on the seed, the split and n: every process reads the same one, at any time."""

    def __init__(self, config: Digits, seed: int) -> None:
        self.length, self.seed = config.length, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        """Return ``digits`` [count, length + 1]."""
        rows = []
        for number in range(start, start + count):
            random = np.random.default_rng([self.seed, split == "valid", number])
            first, step = random.integers(10, size=2)
            rows.append((first + step * np.arange(self.length + 1)) % 10)
        return {"digits": torch.from_numpy(np.stack(rows))}


def build(config: Digits, run: Run) -> Counting:
    """Build the dataset: the target of its contribution."""
    return Counting(config, run.train.seed)
