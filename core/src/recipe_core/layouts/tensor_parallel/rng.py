"""Random numbers of ranks that share a layer: the same where they hold the same, their own where each holds a part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recipe_core.engine.native import fork_rng


def drawn() -> int:
    """A number that follows from the state of torch's generator on the CPU, which stays as it is."""
    state = torch.get_rng_state()
    number = int(torch.randint(2**63 - 1, ()))
    torch.set_rng_state(state)
    return number


@contextmanager
def stream(device: torch.device, *words: object) -> Iterator[None]:
    """Random numbers that follow from ``words`` alone; after the block the generators are as they were before."""
    with fork_rng(device, seed_of(*words)):
        yield


def seed_of(*words: object) -> int:
    """A seed that follows from ``words`` alone."""
    digest = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
