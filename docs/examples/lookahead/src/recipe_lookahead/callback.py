"""Lookahead (Zhang et al. 2019, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from recipe_core import Callback, CallbackRun
from recipe_lookahead.plugin import Lookahead


class SlowWeights(Callback):
    """Every few steps, ``slow += share * (weights - slow)``, then ``weights = slow``, element by element."""

    def __init__(self, config: Lookahead, run: CallbackRun) -> None:
        self.config, self.loaded = config, False
        self.weights = dict(run.model.named_parameters())
        self.slow = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def on_start(self, step: int) -> None:
        """Begin with the weights of a checkpoint, if the run began with one that has no state of this callback."""
        for name, slow in self.slow.items() if not self.loaded else ():
            slow.copy_(self.weights[name])

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Return part of the way."""
        if step % self.config.every == 0:
            for name, slow in self.slow.items():
                slow.lerp_(self.weights[name], self.config.share)
                self.weights[name].copy_(slow)

    def state(self) -> dict[str, Any]:
        """The slow weights. Their names and their placement are those of the parameters."""
        return {"slow": self.slow}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the slow weights of a checkpoint."""
        self.loaded = True
        for name, slow in self.slow.items():
            slow.copy_(state["slow"][name])
