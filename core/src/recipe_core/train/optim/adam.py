"""Adam's arithmetic on lists of tensors: by PyTorch's fused kernel where the device has one, else by foreach."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def adam_(
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
    traced: bool = False,
) -> None:
    """One step of AdamW (Loshchilov and Hutter, 2019, algorithm 2), in place of ``weights`` and of both moments.

    Args:
        weights: tensors of one dtype and device; the others have their shapes and dtype.
        gradients: left as they are.
        firsts: moving means of the gradients.
        seconds: moving means of their squares.
        step: how many there have been, with this one.
        lr: learning rate.
        betas: what each moment keeps.
        eps: added to the root of the second moment.
        decay: weight decay, times ``lr``, taken off before the update.
        traced: as the same graph in all steps, see :attr:`recipe_core.engine.protocol.Engine.traced`.
    """
    beta1, beta2 = betas
    if traced:
        _traced(weights, gradients, firsts, seconds, step, lr=lr, betas=betas, eps=eps, decay=decay)
        return
    if fused(weights[0].device, weights[0].dtype):
        # Made on the device from a number that the host knows: nobody waits.
        steps = [torch.full((), float(step), dtype=torch.float32, device=weights[0].device)] * len(weights)
        torch._fused_adamw_(
            weights, gradients, firsts, seconds, [], steps,
            lr=lr, beta1=beta1, beta2=beta2, weight_decay=decay, eps=eps, amsgrad=False, maximize=False,
        )  # fmt: skip
        return
    torch._foreach_lerp_(firsts, gradients, 1 - beta1)
    torch._foreach_mul_(seconds, beta2)
    torch._foreach_addcmul_(seconds, gradients, gradients, 1 - beta2)
    denominators = torch._foreach_sqrt(seconds)
    torch._foreach_div_(denominators, (1 - beta2**step) ** 0.5)
    torch._foreach_add_(denominators, eps)
    if decay:
        torch._foreach_mul_(weights, 1 - lr * decay)
    torch._foreach_addcdiv_(weights, firsts, denominators, -lr / (1 - beta1**step))


def _traced(
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
    """The same as one graph for all steps: PyTorch/XLA makes constants of 0 and 1, and so another graph of a step whose
    rate is 0 (the first of a warm-up) or whose correction has become 1. What changes from step to step is data here."""
    beta1, beta2 = betas
    values = [(1 - beta2**step) ** 0.5, 1 - lr * decay, -lr / (1 - beta1**step)]
    root, remaining, rate = numbers(values, weights[0]).unbind()
    for weight, gradient, first, second in zip(weights, gradients, firsts, seconds, strict=True):
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if decay:
            weight.mul_(remaining)
        weight.add_(first / (second.sqrt() / root + eps) * rate)


def numbers(values: list[float], like: Tensor) -> Tensor:
    """``values`` on the device and in the type of ``like``; nobody waits."""
    return torch.tensor(values, dtype=like.dtype).to(like.device, non_blocking=True)


@cache
def fused(device: torch.device, dtype: torch.dtype) -> bool:
    """True if ``device`` has PyTorch's fused AdamW for ``dtype``; tried with one number."""
    one = [torch.zeros(1, dtype=dtype, device=device)]
    steps = [torch.ones((), dtype=torch.float32, device=device)]
    try:
        torch._fused_adamw_(
            one, one, [one[0].clone()], [one[0].clone()], [], steps,
            lr=0.0, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1.0, amsgrad=False, maximize=False,
        )  # fmt: skip
    except (NotImplementedError, RuntimeError):
        return False
    return True
