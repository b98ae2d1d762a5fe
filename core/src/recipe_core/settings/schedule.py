"""Learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from recipe_core.errors import PluginError
from recipe_core.hooks.kinds import code_of
from recipe_core.hooks.specs import NoSettings, Part
from recipe_core.hooks.specs.loop import ScheduleSpec
from recipe_core.hooks.target import as_plugin_error
from recipe_core.hooks.train import Train, too_small, warmup_steps

Rate = Callable[[int], float]
"""A function of the optimizer step, counted from 0, that returns its learning rate."""

_FALLS: dict[str, Callable[[float], float]] = {
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "sqrt": lambda done: 1 - math.sqrt(done),
}


def build_rate(part: Part[ScheduleSpec], train: Train) -> Rate:
    """Build the learning rate of a schedule; each of its values is checked.

    Raises:
        PluginError: the schedule raises, or gives something else; so does the rate.
    """
    code = code_of(part.spec)
    with as_plugin_error(code):
        function = part.build(part.config, train)
    if not callable(function):
        raise PluginError(f"{code} returned {function!r:.60}; expected a function rate(step)")
    guard = as_plugin_error(f"{code}: its rate")

    def rate(step: int) -> float:
        with guard:
            value = function(step)
        if not isinstance(value, (float, Real)) or not 0 <= float(value) < math.inf:
            raise PluginError(f"{code}: its rate({step}) returned {value!r:.60}; expected a finite number, at least 0")
        return float(value)

    return rate


def constant(config: object, train: Train) -> Rate:
    """Warm-up, then the peak.

    As in Megatron-LM and transformers, the rate rises linearly from zero (the first step's) to the peak.
    """
    return _after_warmup(train, None)


def linear(config: object, train: Train) -> Rate:
    """Warm-up, then a linear decay to ``min_lr`` at ``train.steps``."""
    return _after_warmup(train, _FALLS["linear"])


def cosine(config: object, train: Train) -> Rate:
    """Warm-up, then a decay along half a cosine (Loshchilov and Hutter, 2017)."""
    return _after_warmup(train, _FALLS["cosine"])


def _after_warmup(train: Train, left: Callable[[float], float] | None, stable: int = 0) -> Rate:
    """Warm-up, then the peak up to step ``stable``, then a decay to ``min_lr`` at the last step.

    ``left`` maps the proportion of the decay's steps that are done to the proportion of the decay that is left; None:
    no decay.
    """
    warmup = warmup_steps(train)
    start = max(warmup, stable)

    def rate(step: int) -> float:
        if step < warmup:
            return train.lr * step / warmup
        if left is None or step < start:
            return train.lr
        done = min(1.0, (step - start) / max(1, train.steps - start))
        return train.min_lr + (train.lr - train.min_lr) * left(done)

    return rate


def polynomial(config: object, train: Train) -> Rate:
    """The PolyWarmUpScheduler of NVIDIA's BERT for LAMB.

    It counts from 1, so that the first step's rate is not zero and the last step's is ``min_lr``. Its curve begins with
    the run, not with the end of the warm-up, where the rate drops: to 85 % of the peak after a warm-up of 28.43 % with
    the power 0.5.
    """

    def rate(step: int) -> float:
        progress = min(1.0, (step + 1) / train.steps)
        warmup = train.warmup_ratio or train.warmup_steps / train.steps
        if progress < warmup:
            return train.lr * progress / warmup
        left: float = (1 - progress) ** train.schedule_power
        return train.min_lr + (train.lr - train.min_lr) * left

    return rate


@dataclass(frozen=True, kw_only=True)
class Wsd:
    """Warm-up, a stable phase at the peak, and a decay at the end."""

    decay_steps: int = 0
    """Steps of the decay, at the end of the run."""
    decay_ratio: float = 0.1
    """The same as a proportion of ``train.steps``, if ``decay_steps`` is 0."""
    shape: Literal["linear", "cosine", "sqrt"] = "linear"
    """Shape of the decay to ``train.min_lr``. ``sqrt``: 1 - sqrt(progress), fast at first."""

    def __post_init__(self) -> None:
        problems = too_small(self, 0, "decay_steps")
        if not 0 <= self.decay_ratio <= 1:
            problems.append(f"decay_ratio: expected 0 to 1, got {self.decay_ratio}")
        if problems:
            raise ValueError("\n".join(problems))


def wsd(config: Wsd, train: Train) -> Rate:
    """Warm-up, stable, decay (Hu and others, 2024, MiniCPM; ``sqrt``: Hägele and others, 2024).

    The decay begins ``decay_steps`` before ``train.steps``, but not before the end of the warm-up. A run stopped in the
    stable phase may be continued with more steps: its rates so far do not depend on them.
    """
    decay = config.decay_steps or round(config.decay_ratio * train.steps)
    return _after_warmup(train, _FALLS[config.shape] if decay else None, stable=train.steps - decay)


_OWN: dict[str, Callable[[object, Train], Rate]] = {
    "constant": constant, "linear": linear, "cosine": cosine, "polynomial": polynomial,
}  # fmt: skip


def learning_rate(train: Train, step: int) -> float:
    """Return the learning rate of ``step`` by a schedule without settings, from ``train`` alone.

    Raises:
        KeyError: ``train.schedule`` is another schedule.
    """
    return _OWN[train.schedule](NoSettings(), train)(step)
