"""Dropout whose random numbers are cheap on a CPU.

On a CPU ``torch.nn.functional.dropout`` draws one Mersenne Twister number per element, which takes longer than the
matrix products around it. Sixteen random bits suffice to decide whether an element is dropped, so one 64-bit draw
serves four elements here.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Set elements of ``x`` to zero with probability ``p`` and scale the others by ``1 / (1 - p)``; any shape.

    On a CPU ``p`` is rounded to a multiple of 2**-16, and the mask follows torch's default generator.
    """
    if not training or p == 0:
        return x
    if not x.is_cpu or torch.compiler.is_compiling():
        return F.dropout(x, p)
    # The scale is a separate factor: 1 / (1 - p) is not exact in bfloat16, the zeros and ones of the mask are.
    return x * keep_mask(x.shape, p, x.dtype) * keep_scale(p)


def keep_mask(shape: tuple[int, ...], p: float, dtype: torch.dtype, generator: torch.Generator | None = None) -> Tensor:
    """A CPU tensor of ``shape``: 0 with probability ``p``, else 1. ``generator`` None: torch's default one."""
    count = math.prod(shape)
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    bits = draws.view(torch.int16)[:count]  # evenly spread over -32768 to 32767
    # Writing the comparison directly as numbers takes a ninth of the time of converting bools.
    mask = torch.empty(count, dtype=dtype)
    return torch.ge(bits, _dropped_levels(p) - _LEVELS // 2, out=mask).view(shape)


def keep_scale(p: float) -> float:
    """Factor for the elements that :func:`keep_mask` keeps; it preserves the expectation."""
    return _LEVELS / (_LEVELS - _dropped_levels(p))


def _dropped_levels(p: float) -> int:
    # how many of the 2**16 values of an element's bits drop it
    return min(round(p * _LEVELS), _LEVELS - 1)
