"""AdamW's update of lists of tensors: PyTorch's fused kernel where the device has one, else foreach operations."""

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
) -> None:
    """One step of AdamW (Loshchilov and Hutter, 2019, algorithm 2), in place on ``weights`` and both moments.

    Args:
        weights: tensors of one dtype and device; the other lists have the same shapes and dtype.
        gradients: not changed.
        firsts: moving means of the gradients.
        seconds: moving means of their squares.
        step: number of this step, from 1.
        lr: learning rate.
        betas: decay rates of the two moments.
        eps: added to the root of the second moment.
        decay: weight decay; times ``lr``, it is subtracted before the update.
    """
    beta1, beta2 = betas
    if has_fused_adamw(weights[0].device, weights[0].dtype):
        # created on the device from a number of the host: no synchronisation
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


@cache
def has_fused_adamw(device: torch.device, dtype: torch.dtype) -> bool:
    """True if ``device`` has PyTorch's fused AdamW for ``dtype``; tried on one element."""
    element = [torch.zeros(1, dtype=dtype, device=device)]
    steps = [torch.ones((), dtype=torch.float32, device=device)]
    try:
        torch._fused_adamw_(
            element, element, [element[0].clone()], [element[0].clone()], [], steps,
            lr=0.0, beta1=0.9, beta2=0.9, weight_decay=0.0, eps=1.0, amsgrad=False, maximize=False,
        )  # fmt: skip
    except (NotImplementedError, RuntimeError):
        return False
    return True
