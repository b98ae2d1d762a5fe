"""Cross entropy of a linear layer's output, without its logits in fp32."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.layouts.tensor_parallel.heads import head_of
from recipe_core.layouts.tensor_parallel.rows import row_shard
from recipe_core.ops.chunks import chunks, is_small
from recipe_core.ops.fusing import fused
from recipe_core.ops.vocabulary import ParallelCrossEntropy

_ALIGNED = 8
"""Columns of 16 bits in 16 bytes."""
_NO_LABEL = -(2**31)  # devices that hold integers in 32 bits would take a smaller one for 0, and ignore that label


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, *, averaged: bool = False,
    weights: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Cross entropy between ``softmax(hidden @ weight.T + bias)`` and ``labels``, one loss per token, in fp32.

    Logits become fp32 in chunks of at most an eighth of the tokens. 16-bit logits are overwritten by their gradient,
    which is kept for backward (``tokens x vocabulary`` values). fp32 logits are not kept: backward recomputes each
    chunk, unless the losses are ``averaged`` on a CPU. Without a gradient, nothing is kept. Up to 8 MB of fp32 logits
    on a CPU, 32 MB elsewhere, are computed and kept whole, because chunks would only take longer. Where
    ``train.compile`` compiles blocks, 16-bit logits need no chunks: losses and gradient are computed in two passes.
    ``torch.nn.functional.linear_cross_entropy`` has the same purpose; for a loss per token its chunked form always
    computes the logits twice, and PyTorch below 2.13 lacks it.

    Args:
        hidden: ``[..., hidden]``.
        weight: ``[vocabulary, hidden]``. Under autocast, both are cast as a linear layer would cast them. For a DTensor
            sharded by rows over its mesh (``bias`` too), each rank computes with its rows, and all ranks get the same
            losses; ``hidden`` is the same on all. The same holds for a matrix that another package has sharded, see
            :mod:`recipe_core.layouts.tensor_parallel.heads`.
        labels: int64 ``[...]``, each below ``vocabulary``.
        bias: ``[vocabulary]``.
        averaged: the caller takes the plain mean of the losses, or their sum; with ``weights``, their sum weighted by
            these. The gradients of the losses are then known but for one factor, so that the weight's gradient is
            summed in forward, which saves a fourth of the products. Other gradients stay correct, but are slower.
        weights: fp32 ``[...]``, from :func:`recipe_core.loss_weights`; None: all are the same.

    Returns:
        fp32 ``[...]``.
    """
    return _losses_and_hits(hidden, weight, labels, bias, averaged=averaged, weights=weights)[0]


def losses_and_hits(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As :func:`linear_cross_entropy`, with hits, bool ``[...]``: True where the label has the largest logit.

    For few tokens: logits of any width are computed once and kept for backward.
    """
    return _losses_and_hits(hidden, weight, labels, bias, with_hits=True)


def _losses_and_hits(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, *, with_hits: bool = False,
    averaged: bool = False, weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if (head := head_of(weight)) is not None:
        return head.losses_and_hits(hidden, weight, labels, bias, with_hits=with_hits)
    rows = None
    if is_dtensor(weight):
        rows, weight = row_shard(weight), weight.to_local()
        bias = bias.to_local() if is_dtensor(bias) else bias
    device = hidden.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if rows is None and hidden.is_cuda and hidden.dtype.itemsize == 2:
        weight, bias = aligned(weight, bias)
    if rows is None and is_small(hidden, weight):
        return _unchunked(hidden, weight, labels, bias, with_hits)
    keep = torch.is_grad_enabled() and (with_hits or hidden.dtype.itemsize == 2)
    # On a CPU only: backward checks the gradients of the losses, which on a device would synchronise.
    eager = hidden.is_cpu and not torch.compiler.is_compiling()
    if not (rows is None and eager and torch.is_grad_enabled() and averaged and not keep and bias is None):
        weights = None  # gradients wait for backward
    elif weights is None:
        weights = torch.ones_like(labels, dtype=torch.float32)
    tensors = hidden.flatten(0, -2), weight, bias, labels.flatten()
    if rows is None:
        losses, hits = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
            *tensors, keep, with_hits, None if weights is None else weights.flatten()
        )
    else:
        losses, hits = ParallelCrossEntropy.apply(*tensors, keep, with_hits, rows)  # type: ignore[no-untyped-call]
    # A copy: FSDP warns about a model that returns a view, which its caller might change in place.
    return losses.view(labels.shape).clone(), hits.view(labels.shape) if with_hits else hits


def _unchunked(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None, with_hits: bool
) -> tuple[Tensor, Tensor]:
    logits = F.linear(hidden, weight, bias).flatten(0, -2).float()
    # It ignores one label, -100 by default; no label here may be ignored.
    losses = F.cross_entropy(logits, labels.flatten(), reduction="none", ignore_index=_NO_LABEL).view(labels.shape)
    hits = logits.argmax(-1).view(labels.shape) == labels if with_hits else labels.new_empty(0, dtype=torch.bool)
    return losses.clone(), hits  # a copy, see _losses_and_hits


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
        with_hits: bool,
        weights: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        kept, replace = F.linear(hidden, weight, bias) if keep else None, fused(replaced_logits)
        grads = None if weights is None else (torch.empty_like(hidden), torch.zeros_like(weight))
        if kept is not None and replace is not None:
            losses, hits = replace(kept, labels, with_hits)
        else:
            losses, hits = _in_chunks(hidden, weight, bias, labels, kept, with_hits, weights, grads)
        # That of `hidden` as if every loss had a gradient of 1, that of `weight` as if it were what the loss weighs.
        ctx.grads, ctx.weights = grads, weights
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
            grad_bias = kept.T @ scale[:, 0] if ctx.needs_input_grad[2] else None
            return kept @ weight * scale, kept.T @ scaled, grad_bias, *[None] * 4
        if ctx.grads is not None and (factor := _factor(grad, ctx.weights)) is not None:
            return ctx.grads[0] * scale, ctx.grads[1] * factor, *[None] * 5
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        grad_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        for rows in chunks(hidden, weight):
            logits = F.linear(hidden[rows], weight, bias)
            chunk = _logits_gradient(torch.log_softmax(logits.float(), -1), labels[rows]).to(hidden.dtype)
            _add_gradients(grad_hidden, grad_weight, rows, chunk, scaled, weight)
            if grad_bias is not None:
                grad_bias.addmv_(chunk.T, scale[rows, 0])
        return grad_hidden * scale, grad_weight, grad_bias, *[None] * 4


def aligned(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """``weight [vocabulary, hidden]`` with as many rows as divide by 8, and a bias that makes the new ones impossible.

    The matrix units of a GPU read 16 bytes at once: 16-bit logits of any other vocabulary take three times as long.
    """
    missing = -weight.shape[0] % _ALIGNED
    if not missing:
        return weight, bias
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return F.pad(weight, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=-math.inf)


def replaced_logits(logits: Tensor, labels: Tensor, with_hits: bool) -> tuple[Tensor, Tensor]:
    """Losses and hits ``[tokens]`` of ``logits`` ``[tokens, vocabulary]``, whose gradient replaces them.

    To be compiled: then nothing of the size of the logits is fp32 in memory, and no chunks are needed. The labels are
    compared, because a scatter, as the chunks use it, would be a pass of its own over fp32 values.
    """
    hits = logits.argmax(-1) == labels if with_hits else labels.new_empty(0, dtype=torch.bool)
    log_probabilities = torch.log_softmax(logits.float(), -1)
    losses = -log_probabilities.gather(1, labels[:, None]).squeeze(1)
    is_label = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
    logits.copy_(log_probabilities.exp() - is_label.float())
    return losses, hits


def _in_chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, kept: Tensor | None, with_hits: bool,
    weights: Tensor | None, grads: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Losses and hits; the logits' gradient replaces ``kept``, or those of ``hidden`` and ``weight`` fill ``grads``."""
    losses = torch.empty(labels.shape, dtype=torch.float32, device=hidden.device)
    hits = torch.empty(labels.shape if with_hits else 0, dtype=torch.bool, device=hidden.device)
    scaled = hidden if weights is None else hidden * weights[:, None]
    for rows in chunks(hidden, weight):
        logits = F.linear(hidden[rows], weight, bias) if kept is None else kept[rows]
        if with_hits:
            hits[rows] = logits.argmax(-1) == labels[rows]
        log_probabilities = torch.log_softmax(logits.float(), -1)
        losses[rows] = -log_probabilities.gather(1, labels[rows, None]).squeeze(1)
        if kept is not None:
            kept[rows] = _logits_gradient(log_probabilities, labels[rows])
        elif grads is not None:
            chunk = _logits_gradient(log_probabilities, labels[rows]).to(hidden.dtype)
            _add_gradients(*grads, rows, chunk, scaled, weight)
    return losses, hits


def _factor(grad: Tensor, weights: Tensor) -> Tensor | None:
    """The one number by which ``weights`` are multiplied in ``grad``; None if, beyond rounding, there is none."""
    largest = weights.abs().argmax()
    factor = grad[largest] / weights[largest]
    return factor if torch.allclose(grad, weights * factor, rtol=1e-6, atol=0) else None


def _add_gradients(
    grad_hidden: Tensor, grad_weight: Tensor, rows: slice, chunk: Tensor, scaled: Tensor, weight: Tensor
) -> None:
    # chunk: the gradient of the logits, [rows, vocabulary]; scaled: `hidden`, each token times what its loss weighs
    grad_hidden[rows] = chunk @ weight
    grad_weight.addmm_(chunk.T, scaled[rows])


def _logits_gradient(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """``softmax - one_hot(labels)``, ``[chunk, vocabulary]``; overwrites ``log_probabilities``."""
    ones = torch.ones_like(labels[:, None], dtype=log_probabilities.dtype)
    return log_probabilities.exp_().scatter_add_(1, labels[:, None], ones.neg_())
