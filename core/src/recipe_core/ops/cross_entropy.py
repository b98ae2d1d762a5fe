"""Cross entropy of a linear layer's output, without its logits in fp32."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from recipe_core.layouts.tensor_parallel.heads import head_of
from recipe_core.layouts.tensor_parallel.rows import rows_of
from recipe_core.ops.chunks import chunks, is_little
from recipe_core.ops.vocabulary import ParallelCrossEntropy

_NO_LABEL = -(2**31)  # devices that hold integers in 32 bits would take a smaller one for 0, and ignore that label


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, *, averaged: bool = False
) -> Tensor:
    """Cross entropy between ``softmax(hidden @ weight.T + bias)`` and ``labels``, one number per token, in fp32.

    Logits become fp32 in chunks of at most an eighth of the tokens. Of 16-bit logits the gradient is kept in their
    place, ``tokens x vocabulary`` values; of fp32 logits nothing is kept, and unless the losses are ``averaged`` on a
    CPU, backward computes each chunk again. Nothing is kept where no gradient is wanted. Up to 1 MB of fp32 logits on a
    CPU, 32 MB elsewhere, are computed and kept whole: chunks would only take longer.
    ``torch.nn.functional.linear_cross_entropy`` has the same purpose; for a loss per token its chunked form always
    computes the logits twice, and PyTorch below 2.13 lacks it.

    Args:
        hidden: ``[..., hidden]``.
        weight: ``[vocabulary, hidden]``. Under autocast, both are cast as a linear layer would cast them. As a DTensor,
            cut by rows over the ranks of its mesh (``bias`` too), each rank computes with its rows, and all of them
            get the same losses; ``hidden`` is the same on all. So it is with a matrix that another package has cut,
            see :mod:`recipe_core.layouts.tensor_parallel.heads`.
        labels: int64 ``[...]``, each below ``vocabulary``.
        bias: ``[vocabulary]``.
        averaged: the caller takes the plain mean of the losses, or their sum. Every token's loss then gets the same
            gradient, so that the weight's can be summed in forward, and a fourth of the products is saved. Other
            gradients are right too, and slower.

    Returns:
        fp32 ``[...]``.
    """
    return _computed(hidden, weight, labels, bias, few=False, averaged=averaged)[0]


def losses_and_hits(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same, and whether the largest logit is that of the label, bool ``[...]``; for few tokens.

    Logits of any width are kept for backward: they are computed once, in one product.
    """
    return _computed(hidden, weight, labels, bias, few=True, averaged=False)


def _computed(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, few: bool, averaged: bool
) -> tuple[Tensor, Tensor]:
    if (head := head_of(weight)) is not None:
        return head.losses_and_hits(hidden, weight, labels, bias, with_hits=few)
    rows = None
    if isinstance(weight, DTensor):
        rows, weight, bias = rows_of(weight), weight.to_local(), bias.to_local() if isinstance(bias, DTensor) else bias
    device = hidden.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if rows is None and is_little(hidden, weight):
        return _whole(hidden, weight, labels, bias, few)
    keep = torch.is_grad_enabled() and (few or hidden.dtype.itemsize == 2)
    # On a CPU alone: whether the gradients are the same is seen in backward, which elsewhere would wait for the device.
    eager = hidden.is_cpu and not torch.compiler.is_compiling()
    ahead = eager and torch.is_grad_enabled() and averaged and not keep and bias is None
    tensors = hidden.flatten(0, -2), weight, bias, labels.flatten()
    if rows is None:
        losses, hits = _LinearCrossEntropy.apply(*tensors, keep, few, ahead)  # type: ignore[no-untyped-call]
    else:
        losses, hits = ParallelCrossEntropy.apply(*tensors, keep, few, rows)  # type: ignore[no-untyped-call]
    # A copy, since FSDP warns of a model that returns a view: its caller might change it in place.
    return losses.view(labels.shape).clone(), hits.view(labels.shape) if few else hits


def _whole(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, few: bool) -> tuple[Tensor, Tensor]:
    """By PyTorch's own functions, which keep the logits."""
    logits = F.linear(hidden, weight, bias).flatten(0, -2).float()
    # It ignores one label, -100 unless told otherwise; ours may be no such number.
    losses = F.cross_entropy(logits, labels.flatten(), reduction="none", ignore_index=_NO_LABEL).view(labels.shape)
    hits = logits.argmax(-1).view(labels.shape) == labels if few else labels.new_empty(0, dtype=torch.bool)
    return losses.clone(), hits  # a copy, see above


class _LinearCrossEntropy(torch.autograd.Function):
    """``hidden [tokens, hidden], weight [vocabulary, hidden], labels [tokens]`` -> losses and hits ``[tokens]``."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        keep: bool,
        few: bool,
        ahead: bool,
    ) -> tuple[Tensor, Tensor]:
        losses = torch.empty(labels.shape, dtype=torch.float32, device=hidden.device)
        hits = torch.empty(labels.shape if few else 0, dtype=torch.bool, device=hidden.device)
        kept = F.linear(hidden, weight, bias) if keep else None
        grads = (torch.empty_like(hidden), torch.zeros_like(weight)) if ahead else None
        for rows in chunks(hidden, weight):
            logits = F.linear(hidden[rows], weight, bias) if kept is None else kept[rows]
            if few:
                hits[rows] = logits.argmax(-1) == labels[rows]
            log_probabilities = torch.log_softmax(logits.float(), -1)
            losses[rows] = -log_probabilities.gather(1, labels[rows, None]).squeeze(1)
            if kept is not None:
                kept[rows] = _logits_gradient(log_probabilities, labels[rows])
            elif grads is not None:
                chunk = _logits_gradient(log_probabilities, labels[rows]).to(hidden.dtype)
                _add_gradients(*grads, rows, chunk, hidden, weight)
        ctx.grads = grads  # for a gradient of one on every loss
        ctx.save_for_backward(hidden, weight, bias, labels, kept)
        ctx.mark_non_differentiable(hits)
        return losses, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, kept = ctx.saved_tensors
        scale = grad[:, None].to(hidden.dtype)
        # Each token's incoming gradient scales its row of `hidden`, which is much narrower than its row of logits.
        scaled = hidden * scale
        if kept is not None:
            grad_bias = None if bias is None else kept.T @ scale[:, 0]
            return kept @ weight * scale, kept.T @ scaled, grad_bias, *[None] * 4
        if ctx.grads is not None and bool((scale == scale[0]).all()):
            return ctx.grads[0] * scale, ctx.grads[1] * scale[0], *[None] * 5
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        for rows in chunks(hidden, weight):
            logits = F.linear(hidden[rows], weight, bias)
            chunk = _logits_gradient(torch.log_softmax(logits.float(), -1), labels[rows]).to(hidden.dtype)
            _add_gradients(grad_hidden, grad_weight, rows, chunk, scaled, weight)
            if grad_bias is not None:
                grad_bias.addmv_(chunk.T, scale[rows, 0])
        return grad_hidden * scale, grad_weight, grad_bias, *[None] * 4


def _add_gradients(
    grad_hidden: Tensor, grad_weight: Tensor, rows: slice, chunk: Tensor, hidden: Tensor, weight: Tensor
) -> None:
    """Gradients of ``hidden`` and ``weight`` that follow from ``chunk`` ``[rows, vocabulary]``, that of the logits."""
    grad_hidden[rows] = chunk @ weight
    grad_weight.addmm_(chunk.T, hidden[rows])


def _logits_gradient(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """``softmax - one_hot(labels)``, ``[chunk, vocabulary]``, in the place of ``log_probabilities``."""
    ones = torch.ones_like(labels[:, None], dtype=log_probabilities.dtype)
    return log_probabilities.exp_().scatter_add_(1, labels[:, None], ones.neg_())
