"""Cross entropy and logits with a vocabulary-parallel output matrix: each rank holds some of its rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from recipe_core.engine.dtensor import is_dtensor
from recipe_core.layouts.tensor_parallel.collectives import AllReduceGradient, all_gathered, all_reduced
from recipe_core.layouts.tensor_parallel.heads import head_of
from recipe_core.layouts.tensor_parallel.rows import RowShard, gather_logits, row_shard
from recipe_core.ops.chunks import chunks


def linear_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits ``hidden @ weight.T``, whole on every rank.

    Args:
        hidden: ``[..., hidden]``, the same on all ranks that share ``weight``.
        weight: ``[vocabulary, hidden]``; a DTensor where it is sharded by rows, unless another package has sharded it.

    Returns:
        ``[..., vocabulary]``.
    """
    if (head := head_of(weight)) is not None:
        return head.logits(hidden, weight)
    if not is_dtensor(weight):
        return F.linear(hidden, weight)
    rows = row_shard(weight)
    hidden = AllReduceGradient.apply(hidden, rows.group)  # type: ignore[no-untyped-call]
    return gather_logits(F.linear(hidden, weight.to_local()), rows)


class ParallelCrossEntropy(torch.autograd.Function):
    """As in :mod:`recipe_core.ops.cross_entropy`, with the ``rows`` of ``weight`` and ``bias`` that this rank holds.

    Each rank contributes four numbers per token: its largest logit, the sum of exponentials relative to it, the label's
    logit where the rank holds that row, and the index of the largest. One all-gather of these gives the losses of all
    tokens; nothing of the vocabulary's size is communicated.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        keep: bool,
        with_hits: bool,
        rows: RowShard,
    ) -> tuple[Tensor, Tensor]:
        kept = F.linear(hidden, weight, bias) if keep else None
        stats = hidden.new_zeros((4, *labels.shape), dtype=torch.float32)
        for part in chunks(hidden, weight):
            logits = (F.linear(hidden[part], weight, bias) if kept is None else kept[part]).float()
            in_range, label_rows = _label_rows(labels[part], rows.first, weight.shape[0])
            largest = logits.amax(-1)
            at_label = logits.gather(1, label_rows).squeeze(1).masked_fill(~in_range, 0)
            if with_hits:
                stats[3, part] = (logits.argmax(-1) + rows.first).float()  # exact below 2**24
            stats[:3, part] = torch.stack([largest, (logits - largest[:, None]).exp_().sum(-1), at_label])
        largest, exponents, at_label, argmax = all_gathered(stats[None], rows.group, 0).unbind(1)
        top, owner = largest.max(0)
        total = (top + (exponents * (largest - top).exp()).sum(0).log()).contiguous()
        label = at_label.sum(0)
        if kept is not None:
            for part in chunks(hidden, weight):
                kept[part] = _gradient(kept[part], total[part], labels[part], rows.first)
        hits = argmax.gather(0, owner[None])[0] == labels
        ctx.save_for_backward(hidden, weight, bias, labels, kept, total)
        ctx.rows = rows
        ctx.mark_non_differentiable(hits)
        return total - label, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, kept, total = ctx.saved_tensors
        scale = grad[:, None].to(hidden.dtype)
        scaled = hidden * scale
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        grad_bias = None if bias is None else torch.zeros_like(bias)
        for part in chunks(hidden, weight):
            if kept is None:
                logits = F.linear(hidden[part], weight, bias)
                chunk = _gradient(logits, total[part], labels[part], ctx.rows.first).to(hidden.dtype)
            else:
                chunk = kept[part]
            grad_hidden[part] = chunk @ weight * scale[part]
            grad_weight.addmm_(chunk.T, scaled[part])
            if grad_bias is not None:
                grad_bias.addmv_(chunk.T, scale[part, 0])
        return all_reduced(grad_hidden, ctx.rows.group), grad_weight, grad_bias, None, None, None, None


def _label_rows(labels: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """A mask of the labels whose row this rank holds, and the local rows (of other labels: any), ``[tokens, 1]``."""
    label_rows = labels - first
    in_range = (label_rows >= 0) & (label_rows < count)
    return in_range, label_rows.masked_fill(~in_range, 0)[:, None]


def _gradient(logits: Tensor, total: Tensor, labels: Tensor, first: int) -> Tensor:
    """``softmax - one_hot(labels)`` of these rows, fp32; ``total`` is the log-sum-exp over the whole vocabulary."""
    in_range, label_rows = _label_rows(labels, first, logits.shape[-1])
    gradient = (logits.float() - total[:, None]).exp_()
    return gradient.scatter_add_(1, label_rows, -in_range[:, None].to(gradient.dtype))
