"""The samples."""

from __future__ import annotations

import numpy as np
import torch

from recipe_core import Batch, Run
from recipe_counting.plugin import Digits


class Counting:
    """Sample n is a function of the seed, the split and n: whoever reads it, and when, gets the same."""

    def __init__(self, config: Digits, seed: int) -> None:
        self.length, self.seed = config.length, seed

    def read(self, split: str, start: int, count: int) -> Batch:
        """``digits`` [count, length + 1]."""
        rows = []
        for number in range(start, start + count):
            random = np.random.default_rng([self.seed, split == "valid", number])
            first, step = random.integers(10, size=2)
            rows.append((first + step * np.arange(self.length + 1)) % 10)
        return {"digits": torch.from_numpy(np.stack(rows))}


def build(config: Digits, run: Run) -> Counting:
    """The target of the dataset's ``build``."""
    return Counting(config, run.train.seed)
