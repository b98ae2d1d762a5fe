"""The learning rate of each step."""

from __future__ import annotations

import math

from recipe_core.hooks.train import Train


def warmup_steps(train: Train) -> int:
    """Steps of warm-up, however it was given."""
    return train.warmup_steps or round(train.warmup_ratio * train.steps)


def learning_rate(train: Train, step: int) -> float:
    """Learning rate of the optimizer step number ``step``, counted from 0.

    As in Megatron-LM and transformers, the rate rises from zero (the first step's) to the peak in the warm-up, then
    falls to ``min_lr`` at ``train.steps``: linearly, or along half a cosine (Loshchilov and Hutter, 2017).

    The polynomial schedule is the PolyWarmUpScheduler of NVIDIA's BERT for LAMB. It counts from 1, so that the first
    step's rate is not zero and the last one's is ``min_lr``, and its curve begins with the run, not with the end of the
    warm-up: there the rate drops, to 85 % of the peak after a warm-up of 28.43 % with the power 0.5.
    """
    if train.schedule == "polynomial":
        return _polynomial(train, step + 1)
    warmup = warmup_steps(train)
    if step < warmup:
        return train.lr * step / warmup
    if train.schedule == "constant":
        return train.lr
    done = min(1.0, (step - warmup) / max(1, train.steps - warmup))
    left = 1 - done if train.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return train.min_lr + (train.lr - train.min_lr) * left


def _polynomial(train: Train, number: int) -> float:
    progress = min(1.0, number / train.steps)
    warmup = train.warmup_ratio or train.warmup_steps / train.steps
    if progress < warmup:
        return train.lr * progress / warmup
    left: float = (1 - progress) ** train.schedule_power
    return train.min_lr + (train.lr - train.min_lr) * left
