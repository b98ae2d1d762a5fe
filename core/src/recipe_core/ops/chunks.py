"""Chunks of tokens whose logits are small enough to be fp32."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

_CPU_CHUNK, _CHUNK = 8 << 20, 256 << 20
"""Bytes of fp32 logits at once: what a CPU's cache holds; elsewhere enough to keep the device busy."""
_CPU_LEAST, _LEAST = _CPU_CHUNK, 32 << 20
"""Bytes that are not cut further: the products of a few rows, and the overhead of the calls, cost more than is saved. A
step of the default megatron_gpt, whose micro batch has 8 MB, takes 1.4 times as long in chunks of 1 MB."""
_ROWS = 256
"""Least rows of a chunk, whatever its bytes: each chunk reads the whole weight and its gradient from memory."""


def is_small(hidden: Tensor, weight: Tensor) -> bool:
    """True if the logits of ``hidden``, ``[..., hidden]``, are too few for chunks to save anything."""
    return math.prod(hidden.shape[:-1]) * 4 * weight.shape[0] <= (_CPU_LEAST if hidden.is_cpu else _LEAST)


def chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the rows of ``hidden``, ``[tokens, hidden]``: each at most an eighth of them, unless they are few."""
    limit, least = (_CPU_CHUNK, _CPU_LEAST) if hidden.is_cpu else (_CHUNK, _LEAST)
    tokens, row = hidden.shape[0], 4 * weight.shape[0]
    size = max(1, least // row, min(tokens // 8, max(_ROWS, limit // row)))
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))
