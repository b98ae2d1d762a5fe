"""From logits to a token."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
    top_p: float | None = None,
) -> Tensor:
    """One token for each row of ``logits``, ``[batch, vocabulary]``: ``[batch, 1]``.

    Args:
        logits: of any device; ``generator`` must be of the same.
        temperature: what logits are divided by; 0 takes the likeliest token.
        top_k: draw among so many of the likeliest tokens; None: among all.
        generator: None: torch's default one.
        top_p: draw among the fewest likeliest tokens whose probabilities add up to this (nucleus sampling, Holtzman and
            others, 2020), of those that ``top_k`` leaves; None: among all.
    """
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    values, ids = logits.topk(min(top_k or logits.shape[-1], logits.shape[-1]))
    shares = (values / temperature).softmax(-1)
    if top_p is not None:
        before = shares.cumsum(-1) - shares  # topk sorts: the first has nothing before it and always stays
        shares = shares.masked_fill(before >= top_p, 0.0)
    drawn = torch.multinomial(shares, 1, generator=generator)
    return ids.gather(1, drawn)
