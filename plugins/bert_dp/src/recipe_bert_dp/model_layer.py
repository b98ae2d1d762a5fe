"""A block of BERT's encoder: Hugging Face's parameters, computed by the core's kernels."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from transformers.models.bert.modeling_bert import BertLayer

from recipe_core.kernels.group_attention import Groups, group_attention
from recipe_core.kernels.norm import add_norm


class Layer(BertLayer):  # type: ignore[misc]
    """Attention and two linear layers, each followed by a sum with its input and a norm.

    Parameters and submodules are those of the class above; the submodules that hold parameters are called, so that what
    a layout does to them takes effect. The number of heads follows from the width of what ``query`` returns.
    """

    def forward(self, hidden: Tensor, groups: Groups) -> Tensor:
        """``hidden`` ``[batch, sequence, hidden]`` to the same; ``groups`` says which tokens see each other."""
        attended = self._attention(hidden, groups)
        inner = F.gelu(self.intermediate.dense(attended))
        return self._add(self.output, inner, attended)

    def _attention(self, hidden: Tensor, groups: Groups) -> Tensor:
        own = self.attention.self
        q, k, v = (
            part(hidden).unflatten(-1, (-1, own.attention_head_size)) for part in (own.query, own.key, own.value)
        )
        context = group_attention(q, k, v, groups, own.dropout.p if self.training else 0.0)
        return self._add(self.attention.output, context.flatten(-2), hidden)

    def _add(self, output: Any, inner: Tensor, outer: Tensor) -> Tensor:
        """What ``output`` (a linear layer, dropout and a norm) makes of ``inner`` and the residual ``outer``."""
        return add_norm(output.dense(inner), outer, output.LayerNorm, output.dropout.p, self.training)
