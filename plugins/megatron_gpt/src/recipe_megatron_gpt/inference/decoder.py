"""Incremental decoding of a GPT, with a key-value cache."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recipe_megatron_gpt.model.gpt import GptModel


class Decoder:
    """Next-token logits of a growing text.

    The model sees at most the last ``window`` tokens. Until the window is full, each token takes a forward pass of one
    position. Then the window slides by a quarter, and its tokens are computed again, because positions are learned.
    """

    def __init__(self, module: GptModel, window: int) -> None:
        """``module``: an unsharded model in evaluation mode; ``window``: at most its positions."""
        self.module = module
        self.window = window
        self._ids: list[int] = []
        self._cache: list[Tensor] = []
        """Keys and values of the cached tokens, for each block ``[2, 1, heads, window, head_dim]``."""
        self._cached = 0

    @torch.inference_mode()
    def feed(self, ids: list[int]) -> Tensor:
        """Append ``ids`` to the text; return the logits of the next token, fp32 ``[vocabulary]`` on the CPU."""
        new = ids
        if self._cached + len(ids) > self.window:
            stay = self.window - self.window // 4 if len(ids) == 1 else self.window
            new, self._cached = (self._ids + ids)[-stay:], 0
        self._ids = (self._ids + ids)[-self.window :]
        tokens = torch.tensor([new], device=self.module.tokens.weight.device)
        positions = torch.arange(self._cached, self._cached + len(new), device=tokens.device)
        hidden = self.module.tokens(tokens) + self.module.positions(positions)
        for number in range(len(self.module.blocks)):
            hidden = self._block(number, hidden)
        self._cached += len(new)
        last = self.module.norm(hidden[:, -1])
        return F.linear(last, self.module.tokens.weight)[0].float().cpu()

    def _block(self, number: int, hidden: Tensor) -> Tensor:
        block: Any = self.module.blocks[number]
        attention, start, stop = block.attention, self._cached, self._cached + hidden.shape[1]
        qkv = attention.qkv(block.attention_norm(hidden)).unflatten(-1, (-1, 3, attention.head_dim))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))
        if number == len(self._cache):
            self._cache.append(k.new_empty(2, *k.shape[:2], self.window, k.shape[3]))
        keys, values = self._cache[number].unbind(0)
        keys[:, :, start:stop], values[:, :, start:stop] = k, v
        mask = None
        if start and stop - start > 1:
            mask = torch.ones(stop - start, stop, dtype=torch.bool, device=q.device).tril(start)
        context = F.scaled_dot_product_attention(
            q, keys[:, :, :stop], values[:, :, :stop], attn_mask=mask, is_causal=start == 0
        )
        hidden = hidden + attention.output(context.transpose(1, 2).flatten(-2))
        output: Tensor = hidden + block.mlp(block.mlp_norm(hidden))
        return output
