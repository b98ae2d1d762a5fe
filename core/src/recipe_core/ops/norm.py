"""Dropout, residual sum and layer norm in one operation, as in BERT's blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.ops.dropout import dropout, keep_mask, keep_scale


def add_norm(x: Tensor, residual: Tensor, norm: nn.LayerNorm, p: float, training: bool) -> Tensor:
    """``norm(dropout(x) + residual)`` of tensors ``[..., hidden]``; ``p`` is the dropout probability.

    On a CPU it makes half the passes over memory. Under autocast ``x`` may be narrower than ``residual``.
    """
    if not x.is_cpu or torch.compiler.is_compiling() or any(is_dtensor(part) for part in (x, residual, norm.weight)):
        whole: Tensor = norm(dropout(x, p, training) + residual)
        return whole
    with torch.autocast("cpu", enabled=False):
        output: Tensor = _AddNorm.apply(  # type: ignore[no-untyped-call]
            x, residual, norm.weight, norm.bias, norm.eps, p if training else 0.0
        )
    return output


class _AddNorm(torch.autograd.Function):
    """``x, residual [..., hidden], weight, bias [hidden]`` -> ``[..., hidden]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, p: float) -> Tensor:
        mask = keep_mask(x.shape, p, residual.dtype) if p else None
        x_wide = x.to(residual.dtype)
        total = residual + x_wide if mask is None else torch.addcmul(residual, x_wide, mask, value=keep_scale(p))
        output, mean, deviation = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
        ctx.save_for_backward(total, mask, mean, deviation, weight, bias)
        ctx.p, ctx.dtype = p, x.dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        total, mask, mean, deviation, weight, bias = ctx.saved_tensors
        grad_total, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
            grad.contiguous(), total, weight.shape, mean, deviation, weight, bias, [True, True, True]
        )
        grad_x = grad_total
        if mask is not None:
            grad_x = torch.addcmul(torch.zeros((), dtype=grad_total.dtype), grad_total, mask, value=keep_scale(ctx.p))
        return grad_x.to(ctx.dtype), grad_total, grad_weight, grad_bias, None, None
