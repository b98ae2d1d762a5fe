"""Cross entropy and logits where each rank of a team holds some rows of the output matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from recipe_core.layouts.tensor_parallel.collectives import SumGradients, gathered, summed
from recipe_core.layouts.tensor_parallel.heads import head_of
from recipe_core.layouts.tensor_parallel.rows import Rows, joined, rows_of
from recipe_core.ops.chunks import chunks


def linear_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits ``hidden @ weight.T``, whole on every rank.

    Args:
        hidden: ``[..., hidden]``, the same on all ranks that share ``weight``.
        weight: ``[vocabulary, hidden]``; a DTensor where it is cut by rows, unless another package has cut it.

    Returns:
        ``[..., vocabulary]``.
    """
    if (head := head_of(weight)) is not None:
        return head.logits(hidden, weight)
    if not isinstance(weight, DTensor):
        return F.linear(hidden, weight)
    rows = rows_of(weight)
    hidden = SumGradients.apply(hidden, rows.group)  # type: ignore[no-untyped-call]
    return joined(F.linear(hidden, weight.to_local()), rows)


class ParallelCrossEntropy(torch.autograd.Function):
    """As in :mod:`recipe_core.ops.cross_entropy`, with the ``rows`` of ``weight`` and ``bias`` that this rank has.

    A row of logits is known by four numbers of each rank: its largest logit, the sum of exponents below it, the label's
    logit where the rank has it, and where the largest is. One exchange of these gives the losses of all tokens; nothing
    as long as the vocabulary is exchanged.
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
        rows: Rows,
    ) -> tuple[Tensor, Tensor]:
        kept = F.linear(hidden, weight, bias) if keep else None
        known = hidden.new_zeros((4, *labels.shape), dtype=torch.float32)
        for part in chunks(hidden, weight):
            logits = (F.linear(hidden[part], weight, bias) if kept is None else kept[part]).float()
            own, places = _places(labels[part], rows.first, weight.shape[0])
            largest = logits.amax(-1)
            at_label = logits.gather(1, places).squeeze(1).masked_fill(~own, 0)
            if with_hits:
                known[3, part] = (logits.argmax(-1) + rows.first).float()  # exact below 2**24
            known[:3, part] = torch.stack([largest, (logits - largest[:, None]).exp_().sum(-1), at_label])
        largest, exponents, at_label, place = gathered(known[None], rows.group, 0).unbind(1)
        top, owner = largest.max(0)
        total = (top + (exponents * (largest - top).exp()).sum(0).log()).contiguous()
        label = at_label.sum(0)
        if kept is not None:
            for part in chunks(hidden, weight):
                kept[part] = _gradient(kept[part], total[part], labels[part], rows.first)
        hits = place.gather(0, owner[None])[0] == labels
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
        return summed(grad_hidden, ctx.rows.group), grad_weight, grad_bias, None, None, None, None


def _places(labels: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """A mask of the labels whose row this rank has, and the rows (of others: any), ``[tokens, 1]``."""
    places = labels - first
    own = (places >= 0) & (places < count)
    return own, places.masked_fill(~own, 0)[:, None]


def _gradient(logits: Tensor, total: Tensor, labels: Tensor, first: int) -> Tensor:
    """``softmax - one_hot(labels)`` of these rows, fp32, where ``total`` is the log of the sum of all exponents."""
    own, places = _places(labels, first, logits.shape[-1])
    gradient = (logits.float() - total[:, None]).exp_()
    return gradient.scatter_add_(1, places, -own[:, None].to(gradient.dtype))
