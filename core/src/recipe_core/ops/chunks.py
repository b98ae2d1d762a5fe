"""Chunks of tokens whose logits are small enough to be fp32."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

_CPU_CHUNK, _CHUNK = 8 << 20, 256 << 20
"""Bytes of fp32 logits at once: what a CPU's cache holds; elsewhere enough to keep the device busy."""
_ROWS = 256
"""Not fewer rows on account of the bytes: for each chunk, the whole weight and its gradient pass through the memory."""


def chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    """Slices of the rows of ``hidden`` ``[tokens, hidden]``, each at most an eighth of them, for these logits."""
    limit = _CPU_CHUNK if hidden.is_cpu else _CHUNK
    tokens = hidden.shape[0]
    size = max(1, min(tokens // 8, max(_ROWS, limit // (4 * weight.shape[0]))))
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))
