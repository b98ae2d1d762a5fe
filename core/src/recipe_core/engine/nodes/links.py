"""Bandwidth and latency between neighbouring nodes: a small all-reduce of two, along a ring of all nodes.

Each pair of nodes has a process group of its own, over the backend of the run's gradients: a broken link leaves the
other links measurable.
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
"""Size of the tensor: large enough for the link to dominate, and done within seconds over 1 Gbit/s."""
_SMALL, _LARGE = 20, 5
"""Repetitions for a single number and for the tensor; the median counts."""


@dataclass(frozen=True)
class NodeLink:
    """A link between two nodes."""

    bandwidth: float = 0.0
    """Bytes per second in each direction, by the time of an all-reduce between two ranks."""
    latency: float = 0.0
    """Seconds that an all-reduce of one number takes."""
    problem: str = ""
    """The reason why it could not be measured."""


def pairs(size: int) -> Iterator[list[tuple[int, int]]]:
    """The links of a ring of ``size`` nodes, in rounds in which no node has two links."""
    ring = [(rank, rank + 1) for rank in range(size - 1)] + ([(size - 1, 0)] if size > 2 else [])
    last = [ring.pop()] if size % 2 and size > 2 else []
    for these in (ring[::2], ring[1::2], last):
        if these:
            yield these


def measure(meeting: Meeting, device: str, limit: float) -> dict[str, Any]:
    """The link from this node to the next of the ring, as plain data; empty for a single node.

    All nodes call it.

    Args:
        meeting: the nodes.
        device: ``cuda``: between the first GPU of each, by NCCL; else between the hosts, by gloo.
        limit: seconds until a link counts as broken.
    """
    own = NodeLink()
    for number, these in enumerate(pairs(meeting.size)):
        # A round begins for all at once: an idle node would make its neighbour's link look slow.
        meeting.exchange(f"round {number}", True, limit)
        for first, second in these:
            if meeting.rank in (first, second):
                link = _between(meeting, first, second, device, limit)
                own = link if meeting.rank == first else own
    return asdict(own) if meeting.size > 1 else {}


def _between(meeting: Meeting, first: int, second: int, device: str, limit: float) -> NodeLink:
    assert meeting.store is not None
    store = dist.PrefixStore(f"link/{first}-{second}", meeting.store)
    on_gpu = device == "cuda"
    try:
        group = _group(store, int(meeting.rank == second), on_gpu, timedelta(seconds=limit))
        where = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        small, large = torch.zeros(1, device=where), torch.zeros(_BYTES["cuda" if on_gpu else "cpu"] // 4, device=where)
        wait = torch.cuda.synchronize if on_gpu else _done
        for warm in (small, large):  # the first of each kind connects and fills buffers
            group.allreduce([warm]).wait()
        wait()
        latency = statistics.median(_timed(group, small, wait) for _ in range(_SMALL))
        seconds = statistics.median(_timed(group, large, wait) for _ in range(_LARGE))
    except (dist.DistError, RuntimeError) as error:
        return NodeLink(problem=str(error).partition("\n")[0])
    # Of two ranks, each sends and receives half of the tensor twice.
    return NodeLink(large.nbytes / seconds, latency)


def _group(store: dist.Store, rank: int, on_gpu: bool, limit: timedelta) -> Any:
    # Without a default group of all nodes, which a disconnected node could not join.
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
    pass  # gloo's wait() has waited for the result
