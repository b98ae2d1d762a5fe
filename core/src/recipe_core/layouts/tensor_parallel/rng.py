"""Random numbers of a tensor-parallel group: equal for replicated values, different for shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recipe_core.engine.native import fork_rng


def peek_seed() -> int:
    """A number drawn from torch's generator on the CPU, whose state is restored."""
    state = torch.get_rng_state()
    number = int(torch.randint(2**63 - 1, ()))
    torch.set_rng_state(state)
    return number


@contextmanager
def stream(device: torch.device, *keys: object) -> Iterator[None]:
    """Random numbers that follow from ``keys`` alone; afterwards the generators are as they were before."""
    with fork_rng(device, seed_of(*keys)):
        yield


def seed_of(*keys: object) -> int:
    """A seed that follows from ``keys`` alone."""
    digest = hashlib.sha256(" ".join(map(str, keys)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
