"""The schedule. No torch here: `recipe check` builds it too."""

from __future__ import annotations

import math
from collections.abc import Callable

from recipe_core import Train, warmup_steps

from recipe_new_plugin.plugin import InverseRoot


def build(config: InverseRoot, train: Train) -> Callable[[int], float]:
    """Return the rate of each optimizer step. Steps count from 0; nothing is saved, so it depends on the step alone."""
    warmup = warmup_steps(train)  # from train.warmup_steps or train.warmup_ratio

    def rate(step: int) -> float:
        if step < warmup:
            return train.lr * step / warmup
        return train.lr * math.sqrt(config.scale / (config.scale + step - warmup))

    return rate
