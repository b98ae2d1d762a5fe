"""AdamW and LAMB whose steps are all one graph.

PyTorch/XLA compiles 0 and 1 as constants, so that a rate of 0 (the first step of a warm-up) or a correction of 1 would
give another graph. Here, all that changes from step to step is data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from recipe_core import Trainable
from recipe_core.train.optim.adamw import AdamW, ParamGroup
from recipe_core.train.optim.lamb import Lamb


def adamw(config: object, trainable: Trainable) -> torch.optim.Optimizer:
    """Build AdamW."""
    return _build(TracedAdamW, trainable)


def lamb(config: object, trainable: Trainable) -> torch.optim.Optimizer:
    """Build LAMB; biases and norms have no trust ratio."""
    return _build(TracedLamb, trainable)


def _build(kind: type[AdamW], trainable: Trainable) -> AdamW:
    train = replace(trainable.train, stochastic_rounding=False)  # Neuron's runtime rounds
    return kind(trainable.groups(), train, trainable.names, trainable.sharded)


def traced_adam_(
    weights: list[Tensor],
    gradients: list[Tensor],
    firsts: list[Tensor],
    seconds: list[Tensor],
    step: int,
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """One step of AdamW; see :func:`recipe_core.train.optim.adam.adam_`."""
    beta1, beta2 = betas
    values = [(1 - beta2**step) ** 0.5, 1 - lr * decay, -lr / (1 - beta1**step)]
    root, remaining, rate = _on_device(values, weights[0]).unbind()
    for weight, gradient, first, second in zip(weights, gradients, firsts, seconds, strict=True):
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if decay:
            weight.mul_(remaining)
        weight.add_(first / (second.sqrt() / root + eps) * rate)


def _on_device(values: list[float], like: Tensor) -> Tensor:
    """``values`` with the device and dtype of ``like``, without synchronisation."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


class TracedAdamW(AdamW):
    """AdamW; see :class:`recipe_core.train.optim.adamw.AdamW`."""

    _adam = staticmethod(traced_adam_)

    def _in_place(self, shard: Tensor, widths: tuple[torch.dtype, ...], state: Mapping[str, Tensor]) -> bool:
        return False

    def make_states(self, parameters: Iterable[nn.Parameter]) -> bool:
        """False: creating states apart from a step would be another graph."""
        return False


class TracedLamb(TracedAdamW, Lamb):
    """LAMB; see :class:`recipe_core.train.optim.lamb.Lamb`."""

    def _rate(self, group: ParamGroup, ratios: Tensor) -> Tensor:
        return _on_device([group["lr"]], ratios)
