"""A block of BERT's encoder: Hugging Face's parameters, computed by the core's kernels."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertLayer, BertSelfAttention

from recipe_core import PackedSegments, add_norm, group_attention


class SelfAttention(BertSelfAttention):  # type: ignore[misc]
    """Self-attention; the number of heads follows from the output width of ``query``."""

    def forward(self, hidden: Tensor, groups: PackedSegments) -> Tensor:
        """``hidden`` ``[batch, sequence, hidden]`` to ``[batch, sequence, heads * head_dim]``."""
        q, k, v = (
            part(hidden).unflatten(-1, (-1, self.attention_head_size)) for part in (self.query, self.key, self.value)
        )
        return group_attention(q, k, v, groups, self.dropout.p if self.training else 0.0).flatten(-2)


class Layer(BertLayer):  # type: ignore[misc]
    """Attention and two linear layers, each followed by a sum with its input and a norm.

    Parameters and submodules are those of the parent class; submodules with parameters are called, so that a layout's
    changes to them take effect.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.attention.self = SelfAttention(config)

    def forward(self, hidden: Tensor, groups: PackedSegments) -> Tensor:
        """``hidden`` ``[batch, sequence, hidden]`` to the same; tokens attend within their group."""
        attended = self._add(self.attention.output, self.attention.self(hidden, groups), hidden)
        inner = F.gelu(self.intermediate.dense(attended))
        return self._add(self.output, inner, attended)

    def _add(self, output: Any, inner: Tensor, outer: Tensor) -> Tensor:
        return add_norm(output.dense(inner), outer, output.LayerNorm, output.dropout.p, self.training)
