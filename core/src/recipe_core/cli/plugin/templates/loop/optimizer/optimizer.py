"""The optimizer."""

from __future__ import annotations

import torch
from recipe_core import Trainable
from torch.optim import Optimizer

from recipe_new_plugin.plugin import Momentum


class MomentumSgd(Optimizer):
    """``direction = momentum * direction + gradient``, ``weight -= lr * direction``, element by element.

    A step that treats each element by itself is right whatever part of a tensor this process holds; one that
    needs a norm or a product of the whole tensor has to gather it, or to add up over the ranks that share it.
    """

    def __init__(self, groups: list[dict[str, object]], momentum: float) -> None:
        super().__init__(groups, {"lr": 0.0, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:  # placed as the parameter is, so that checkpoints of other layouts fit
                    state["direction"] = torch.zeros_like(parameter)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                state["direction"].mul_(group["momentum"]).add_(parameter.grad)
                parameter.add_(state["direction"], alpha=-group["lr"])


def build(config: Momentum, trainable: Trainable) -> Optimizer:
    """Return the optimizer, with parameter groups with and without weight decay; the loop sets ``lr``."""
    return MomentumSgd(trainable.groups(), config.momentum)
