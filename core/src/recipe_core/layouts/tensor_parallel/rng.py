"""Random numbers of ranks that share a layer: the same where they hold the same, their own where each holds a part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def drawn() -> int:
    """A number that follows from the state of torch's generator on the CPU, which stays as it is."""
    state = torch.get_rng_state()
    number = int(torch.randint(2**63 - 1, ()))
    torch.set_rng_state(state)
    return number


@contextmanager
def stream(device: torch.device, *words: object) -> Iterator[None]:
    """Random numbers that follow from ``words`` alone; after the block the generators are as they were before."""
    digest = hashlib.sha256(" ".join(map(str, words)).encode()).digest()
    seed = int.from_bytes(digest[:8], "little") >> 1
    with _fork_of_xla(device, seed) if device.type == "xla" else _fork(device, seed):
        yield


@contextmanager
def _fork(device: torch.device, seed: int) -> Iterator[None]:
    own = device.type != "cpu" and hasattr(torch.get_device_module(device), "get_rng_state")
    with torch.random.fork_rng([device] if own else [], device_type=device.type if own else "cpu"):
        if device.type == "cpu":  # its generator alone: telling the devices that are not used takes longer than a layer
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


@contextmanager
def _fork_of_xla(device: torch.device, seed: int) -> Iterator[None]:
    """The device's generator is a number on the host, which becomes data of the graph: no graph depends on it."""
    from torch_xla.core import xla_model as xm

    held = xm.get_rng_state(device)
    try:
        with _fork(torch.device("cpu"), seed):
            xm.set_rng_state(seed, device)
            yield
    finally:
        xm.set_rng_state(held, device)
