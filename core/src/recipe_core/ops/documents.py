"""Rows that hold several documents, which a causal model keeps apart.

A dataset whose rows hold several documents gives, beside ``tokens`` and ``labels`` ``[batch, sequence]``:

``document_ids``, int64 ``[batch, sequence]``
    The documents of each row, numbered from 1 in the order of the row; 0 is padding. Equal numbers are adjacent.
``loss_mask``, bool ``[batch, sequence]``
    True where the label is the next token of the same document. Elsewhere the label is a valid id without meaning.

A model that declares :attr:`recipe_core.Model.document_mask` restarts positions and attention at each document where a
batch has ``document_ids``, and averages only the losses that ``loss_mask`` keeps: its outputs at the tokens of a
document are those of a row with this document alone. Such a dataset says so in
:attr:`recipe_core.DataFacts.document_mask`, and other models are refused before the run. All ranks of a tensor-parallel
group and all stages of a pipeline have the whole batch, so each computes :func:`documents_of` by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recipe_core.engine.machine.probe import compiler_at_hand
from recipe_core.errors import ConfigError
from recipe_core.ops.attention import causal_product
from recipe_core.ops.document_blocks import SIDE, DocumentBlocks, block_attention, document_blocks
from recipe_core.ops.group_attention import same_segment

_CHOICE = "RECIPE_DOCUMENTS"
"""Environment variable: ``flex`` (the default) or ``mask``, how attention on CUDA GPUs keeps documents apart."""
_NARROWEST = 16
"""Numbers of a head that FlexAttention needs at least."""


class Documents(NamedTuple):
    """The documents of a batch, computed once for all layers of one window."""

    ids: Tensor
    """``document_ids`` of the batch."""
    lengths: tuple[int, ...] | None
    """On CPUs, the tokens of each document, row by row; the padding of a row counts as one. None elsewhere."""
    mask: Tensor | None
    """Off the CPU without ``blocks``, True where a token attends to another, ``[batch, 1, sequence, sequence]``."""
    window: int | None = None
    """Last tokens of its document that a token attends to, itself included; None: all."""
    blocks: DocumentBlocks | None = None
    """On CUDA devices, the squares of scores that FlexAttention computes; None where ``mask`` serves."""


def documents_of(ids: Tensor, window: int | None = None, dropout: float = 0.0) -> Documents:
    """Return the documents of ``document_ids``, int64 ``[batch, sequence]``, for layers whose attention has ``window``
    and ``dropout``, which FlexAttention lacks.

    This does not synchronise with a device. On a CPU it reads the values, so that attention skips pairs of tokens of
    different documents.

    Raises:
        ConfigError: the environment variable ``RECIPE_DOCUMENTS`` is neither ``flex`` nor ``mask``.
    """
    if ids.is_cpu and not torch.compiler.is_compiling():
        lengths = tuple(len(list(run)) for row in ids.tolist() for _, run in groupby(row))
        return Documents(ids, lengths, None, window)
    if ids.is_cuda and not torch.compiler.is_compiling() and _takes_blocks(ids.shape[1], dropout):
        return in_blocks(ids, window)
    return Documents(ids, None, _mask(ids, window), window)


def in_blocks(ids: Tensor, window: int | None) -> Documents:
    """Return :func:`documents_of` as FlexAttention takes them."""
    first = _starts(ids)
    if window is not None:
        first = first.maximum(_places(ids) - window + 1)
    return Documents(ids, None, None, window, document_blocks(first))


def document_positions(ids: Tensor) -> Tensor:
    """Return the position of each token in its document, from 0: int64 ``[batch, sequence]``."""
    return _places(ids) - _starts(ids)


def document_attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents, dropout: float) -> Tensor:
    """Causal attention of every token within its document, with dropout on the attention probabilities.

    On a CPU each document is computed by itself, by the kernel of :func:`recipe_core.causal_attention` or
    :func:`recipe_core.grouped_query_attention`. On CUDA devices FlexAttention skips what lies between documents;
    elsewhere, with dropout, and for rows of less than 128 tokens, one fused kernel takes a mask. Padding attends to
    padding, so that all results are finite.

    Args:
        q: ``[batch, sequence, heads, head_dim]``.
        k, v: ``[batch, sequence, kv_heads, head_dim]``; ``kv_heads`` divides ``heads``, which share keys in groups.
        documents: from :func:`documents_of`, with the window.
        dropout: dropout probability; 0 outside training.

    Returns:
        ``[batch, sequence, heads, head_dim]``; without meaning at padding.
    """
    if documents.blocks is not None and not dropout and q.shape[-1] >= _NARROWEST:
        return block_attention(q, k, v, documents.blocks)
    if documents.lengths is None or torch.compiler.is_compiling():
        mask = _mask(documents.ids, documents.window) if documents.mask is None else documents.mask
        if k.shape[2] != q.shape[2]:  # fused kernels that take a mask take no groups of heads
            k, v = (part.repeat_interleave(q.shape[2] // k.shape[2], 2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2)
    # Neighbours of one length share a call, as whole rows do. The backward of `split` is one concatenation.
    shapes = [(len(list(same)), length) for length, same in groupby(documents.lengths)]
    sizes = [count * length for count, length in shapes]
    queries, keys, values = (part.flatten(0, 1).split(sizes) for part in (q, k, v))
    outputs = []
    for shape, *piece in zip(shapes, queries, keys, values, strict=True):
        of_q, of_k, of_v = (part.unflatten(0, shape) for part in piece)
        outputs.append(causal_product(of_q, of_k, of_v, dropout, documents.window).flatten(0, 1))
    return torch.cat(outputs).view(q.shape)


def loss_weights(batch: Mapping[str, Tensor]) -> Tensor | None:
    """Weight of each loss in :func:`masked_mean_loss`, fp32 ``[batch, sequence]``; None without ``loss_mask``.

    A model passes it to :func:`recipe_core.linear_cross_entropy`, which on CPUs then computes the logits only once.
    """
    if "loss_mask" not in batch:
        return None
    mask = batch["loss_mask"].float()
    return mask / (mask.sum(1, keepdim=True).clamp(min=1) * len(mask))


def masked_mean_loss(losses: Tensor, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The mean of the losses ``[batch, sequence]``; with ``loss_mask``, the mean of each row's mean where it is True.

    The mean of the rows does not depend on their division into micro batches and ranks. With ``document_ids``, also
    ``real_tokens``, a count, and ``padding``, the share of all other tokens.
    """
    weights = loss_weights(batch)
    if weights is None:
        return {"loss": losses.mean()}
    values = {"loss": (losses * weights).sum()}
    if "document_ids" in batch:
        real = (batch["document_ids"] != 0).float()
        values |= {"real_tokens": real.sum(), "padding": 1 - real.mean()}
    return values


def _takes_blocks(length: int, dropout: float) -> bool:
    """True if FlexAttention keeps the documents of rows of ``length`` tokens apart on a CUDA device."""
    chosen = os.environ.get(_CHOICE) or "flex"
    if chosen not in ("flex", "mask"):
        raise ConfigError(f"{_CHOICE}: {chosen!r} is not known; set it to flex or mask, or unset it")
    # Shorter rows have a kernel for generation, without gradients, and their mask costs next to nothing.
    return chosen == "flex" and not dropout and length >= SIDE and compiler_at_hand()


def _places(ids: Tensor) -> Tensor:
    """The place of each token in its row."""
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def _starts(ids: Tensor) -> Tensor:
    """The place where the document of each token starts."""
    same = ids[:, 1:] == ids[:, :-1]
    return torch.where(F.pad(same, (1, 0)), 0, _places(ids)).cummax(1).values


def _mask(ids: Tensor, window: int | None) -> Tensor:
    earlier = same_segment(ids).tril()
    return earlier if window is None else earlier.triu(1 - window)
