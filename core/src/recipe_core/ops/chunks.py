"""Chunks of tokens whose logits are small enough to be fp32."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

_CPU_CHUNK, _CHUNK = 8 << 20, 256 << 20
"""Bytes of fp32 logits at once: what a CPU's cache holds; elsewhere enough to keep the device busy."""
_CPU_LEAST, _LEAST = 1 << 20, 32 << 20
"""And bytes that are not cut further: below, the calls take longer than what they compute."""
_ROWS = 256
"""Not fewer rows on account of the bytes: for each chunk, the whole weight and its gradient pass through the memory."""


def is_little(hidden: Tensor, weight: Tensor) -> bool:
    """True if the logits of ``hidden`` ``[..., hidden]`` are so few that cutting them would only cost time."""
    return math.prod(hidden.shape[:-1]) * 4 * weight.shape[0] <= (_CPU_LEAST if hidden.is_cpu else _LEAST)


def chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of rows of ``hidden`` ``[tokens, hidden]`` for these logits: at most an eighth, unless it is little."""
    limit, least = (_CPU_CHUNK, _CPU_LEAST) if hidden.is_cpu else (_CHUNK, _LEAST)
    tokens, row = hidden.shape[0], 4 * weight.shape[0]
    size = max(1, least // row, min(tokens // 8, max(_ROWS, limit // row)))
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))
