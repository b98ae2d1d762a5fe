"""An exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from recipe_core.train.callbacks.callback import Callback, CallbackRun, local
from recipe_core.train.callbacks.settings import Ema

WEIGHTS = "weights"
"""The average in the state, by the names of the parameters: ``recipe convert --weights ema`` exports it."""


class WeightAverage(Callback):
    """Keeps ``average = decay * average + (1 - decay) * weights`` of each trainable parameter, in fp32.

    Each rank averages its own shards, so that nothing is communicated, and every layout has the same average.
    """

    def __init__(self, config: Ema, run: CallbackRun) -> None:
        self.config = config
        self._weights = dict(run.model.named_parameters())
        self._continues = False
        self._average = {name: weight.detach().float().clone() for name, weight in self._weights.items()}

    def on_start(self, step: int) -> None:
        """Begin with the present weights, unless a state was loaded."""
        if not self._continues:
            self._follow(0.0)

    def after_step(self, step: int) -> None:
        """Update the average."""
        if step % self.config.every == 0:
            self._follow(self.config.decay if step > self.config.start else 0.0)

    @torch.no_grad()
    def _follow(self, decay: float) -> None:
        weights = [local(weight).float() for weight in self._weights.values()]
        average = [local(value) for value in self._average.values()]
        if decay:
            torch._foreach_lerp_(average, weights, 1 - decay)
        else:
            torch._foreach_copy_(average, weights)

    def evaluations(self) -> Mapping[str, AbstractContextManager[None]]:
        """The average as ``val_ema_...``."""
        return {"ema": self._swapped()} if self.config.evaluate else {}

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        weights = [local(weight) for weight in self._weights.values()]
        kept = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, [local(value) for value in self._average.values()])
        try:
            yield
        finally:
            torch._foreach_copy_(weights, kept)

    def state(self) -> dict[str, Any]:
        """The average."""
        return {WEIGHTS: dict(self._average)}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue the average."""
        saved: Mapping[str, Tensor] = state[WEIGHTS]
        self._continues = True
        for name, value in self._average.items():
            local(value).copy_(local(saved[name]))
