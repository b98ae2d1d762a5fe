"""Initial values of parameters that depend on the seed and the parameter's name alone."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def normal_of(name: str, shape: torch.Size, std: float) -> Tensor:
    """Normal values of the parameter ``name``: fp32, on the CPU, around 0 with the deviation ``std``.

    They come from a generator of their own, made from ``torch.initial_seed()`` and the name, and draw nothing from
    torch's. So they are the same on every device and whatever part of the model a rank holds.
    """
    digest = hashlib.sha256(f"{torch.initial_seed()} {name}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(0, std, generator=generator)
