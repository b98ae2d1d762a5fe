"""Initial values of parameters, which depend only on the seed and the parameter's name."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def normal_of(name: str, shape: torch.Size, std: float) -> Tensor:
    """Normal initial values of the parameter ``name``: fp32, on the CPU, mean 0, standard deviation ``std``.

    They come from a separate generator, seeded by ``torch.initial_seed()`` and the name; torch's own generator does not
    advance. So they are the same on every device and for every division of the model over ranks.
    """
    return torch.empty(shape, dtype=torch.float32, device="cpu").normal_(0, std, generator=_generator(name))


def uniform_of(name: str, shape: torch.Size, bound: float) -> Tensor:
    """Uniform initial values of the parameter ``name`` between ``-bound`` and ``bound``; see :func:`normal_of`."""
    values = torch.empty(shape, dtype=torch.float32, device="cpu")
    return values.uniform_(-bound, bound, generator=_generator(name))


def _generator(name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{torch.initial_seed()} {name}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "little") >> 1)
