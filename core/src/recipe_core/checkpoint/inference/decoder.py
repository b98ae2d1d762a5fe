"""Incremental decoding with a causal language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recipe_core.ops.key_values import KeyValueCache


class Decoder:
    """Next-token logits of a growing text.

    The model sees at most the last ``window`` tokens. Until the window is full, each token takes a forward pass of one
    position. Then the window slides by a quarter, and its tokens are computed again, because their positions change.
    """

    def __init__(self, module: Any, window: int) -> None:
        """
        Args:
            module: an unsharded model in evaluation mode. Its method ``next_logits(tokens, cache)``, if it has one,
                returns the logits ``[vocabulary]`` after ``tokens``, ``[1, length]``, of which the first ones are in a
                :class:`KeyValueCache`. Without it, each token takes a forward pass of all tokens in the window.
            window: at most the positions of the model.
        """
        self.module = module
        self.window = window
        self._ids: list[int] = []
        self._cache = KeyValueCache(window)

    @torch.inference_mode()
    def feed(self, ids: list[int]) -> Tensor:
        """Append ``ids`` to the text; return the logits of the next token, fp32 ``[vocabulary]`` on the CPU."""
        self._ids += ids
        if len(self._ids) > self.window:
            self._ids = self._ids[-(self.window - self.window // 4 if len(ids) == 1 else self.window) :]
            self._cache.length = 0
        tokens = torch.tensor([self._ids], device=next(self.module.parameters()).device)
        if hasattr(self.module, "next_logits"):
            logits: Tensor = self.module.next_logits(tokens, self._cache)
        else:
            logits = self.module({"tokens": tokens})[0, -1]
        return logits.float().cpu()
