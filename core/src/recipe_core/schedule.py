"""The learning rate of each step."""

from __future__ import annotations

import math

from recipe_core.settings import Train


def warmup_steps(train: Train) -> int:
    """Steps of warm-up, however it was given."""
    return train.warmup_steps or round(train.warmup_ratio * train.steps)


def learning_rate(train: Train, step: int) -> float:
    """Learning rate of the optimizer step number ``step``, counted from 0.

    As in Megatron-LM and transformers, the rate rises from zero (the first step's) to the peak in the warm-up, then
    falls to ``min_lr`` at ``train.steps``: linearly, or along half a cosine (Loshchilov and Hutter, 2017).
    """
    warmup = warmup_steps(train)
    if step < warmup:
        return train.lr * step / warmup
    if train.schedule == "constant":
        return train.lr
    done = min(1.0, (step - warmup) / max(1, train.steps - warmup))
    left = 1 - done if train.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return train.min_lr + (train.lr - train.min_lr) * left
