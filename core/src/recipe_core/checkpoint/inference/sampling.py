"""Sampling of tokens from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def draw(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
    top_p: float | None = None,
) -> Tensor:
    """Sample one token for each row of ``logits``, ``[batch, vocabulary]``: ``[batch, 1]``.

    Args:
        logits: on any device, the same as ``generator``.
        temperature: divisor of the logits; 0 takes the most likely token.
        top_k: sample from the K most likely tokens; None: from all.
        generator: None: torch's default one.
        top_p: sample from the fewest most likely tokens of ``top_k`` whose probabilities add up to this (nucleus
            sampling, Holtzman and others, 2020); None: from all of them.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    values, ids = logits.topk(min(top_k or logits.shape[-1], logits.shape[-1]))
    shares = (values / temperature).softmax(-1)
    if top_p is not None:
        before = shares.cumsum(-1) - shares  # topk sorts, so the most likely token always stays
        shares = shares.masked_fill(before >= top_p, 0.0)
    drawn = torch.multinomial(shares, 1, generator=generator)
    return ids.gather(1, drawn)


@torch.no_grad()
def sample(
    module: Any,
    tokens: Tensor,
    count: int,
    window: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Continue ``tokens``, int64 ``[batch, length]``, by ``count`` tokens each: ``[batch, length + count]``.

    ``module`` may be a model under any layout: it is called as a whole, with the last ``window`` tokens; there is no
    key-value cache.

    Args:
        temperature: divisor of the logits; 0 takes the most likely token.
        top_k: sample from the K most likely tokens; None: from all.
        generator: on the CPU, where tokens are sampled, so that all ranks sample the same; None: torch's default one.
    """
    was_training = module.training
    module.eval()
    try:
        for _ in range(count):
            logits = module({"tokens": tokens[:, -window:]})[:, -1].float().cpu()
            tokens = torch.cat([tokens, draw(logits, temperature, top_k, generator).to(tokens.device)], dim=1)
    finally:
        module.train(was_training)
    return tokens
