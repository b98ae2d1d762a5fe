"""How fast each node reaches the next one: a small all-reduce between the two, along a ring of all nodes.

A pair of nodes at a time has a process group of its own, over the backend that a run's gradients take between these
devices: one link that is cut is one link without a speed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from recipe_core.engine.nodes.meeting import Meeting

_BYTES = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Size of the tensor: enough that the link is what takes the time, and over 1 Gbit/s still done within seconds."""
_SMALL, _LARGE = 20, 5
"""How often a single number, and the tensor, are reduced; the median counts."""


@dataclass(frozen=True)
class Link:
    """A link between two nodes."""

    bandwidth: float = 0.0
    """Bytes per second in each direction, by the time of an all-reduce of two ranks."""
    latency: float = 0.0
    """Seconds that an all-reduce of one number takes."""
    problem: str = ""
    """Why it could not be measured."""


def pairs(size: int) -> Iterator[list[tuple[int, int]]]:
    """The links of a ring of ``size`` nodes, in rounds in which no node has two."""
    ring = [(rank, rank + 1) for rank in range(size - 1)] + ([(size - 1, 0)] if size > 2 else [])
    last = [ring.pop()] if size % 2 and size > 2 else []
    for these in (ring[::2], ring[1::2], last):
        if these:
            yield these


def measure(meeting: Meeting, device: str, limit: float) -> dict[str, Any]:
    """The link from this node to the next one of the ring, as plain data; empty where there is none.

    All nodes call it.

    Args:
        meeting: the nodes.
        device: ``cuda``: between the first GPU of each, by NCCL; else between the hosts, by gloo.
        limit: seconds until a link counts as cut.
    """
    mine = Link()
    for number, these in enumerate(pairs(meeting.size)):
        # A round begins for all at once: an idle node would make its neighbour's link look slow.
        meeting.exchange(f"round {number}", True, limit)
        for first, second in these:
            if meeting.rank in (first, second):
                found = _between(meeting, first, second, device, limit)
                mine = found if meeting.rank == first else mine
    return asdict(mine) if meeting.size > 1 else {}


def _between(meeting: Meeting, first: int, second: int, device: str, limit: float) -> Link:
    assert meeting.store is not None
    store = dist.PrefixStore(f"link/{first}-{second}", meeting.store)
    on_gpu = device == "cuda"
    try:
        group = _group(store, int(meeting.rank == second), on_gpu, timedelta(seconds=limit))
        where = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        small, large = torch.zeros(1, device=where), torch.zeros(_BYTES["cuda" if on_gpu else "cpu"] // 4, device=where)
        wait = torch.cuda.synchronize if on_gpu else _done
        for warm in (small, large):  # connections are made, and buffers filled, by the first of a kind
            group.allreduce([warm]).wait()
        wait()
        latency = statistics.median(_timed(group, small, wait) for _ in range(_SMALL))
        seconds = statistics.median(_timed(group, large, wait) for _ in range(_LARGE))
    except (dist.DistError, RuntimeError) as error:
        return Link(problem=str(error).partition("\n")[0])
    # Of two ranks, each sends and receives half of the tensor twice.
    return Link(large.nbytes / seconds, latency)


def _group(store: dist.Store, rank: int, on_gpu: bool, limit: timedelta) -> Any:
    """A group of two, as PyTorch makes its own; no world of all nodes, which one that is cut off could not join."""
    if not on_gpu:
        return dist.ProcessGroupGloo(store, rank, 2, limit)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    return dist.ProcessGroupNCCL(store, rank, 2, options)


def _timed(group: Any, tensor: torch.Tensor, wait: Callable[[], None]) -> float:
    start = time.perf_counter()
    group.allreduce([tensor]).wait()
    wait()
    return time.perf_counter() - start


def _done() -> None:
    """What gloo was waited for is done."""
