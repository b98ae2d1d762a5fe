"""One process of each node, which exchange what they see.

They use a store that rank 0 holds instead of collectives: a broken link between two nodes, or a node that ends, must
not block the others.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from recipe_core.engine.native import meeting_store
from recipe_core.errors import LaunchError
from recipe_core.launch.host import host
from recipe_core.launch.slurm_nodes import host_of
from recipe_core.launch.worker import Worker, worker

_LINGER = 10.0
"""Seconds that rank 0, which holds the store, waits for the others to read its last value."""


class Meeting:
    """The nodes of a check. Each method that exchanges something is called by all of them, in one order.

    Args:
        me: the rank of this process; None: it is alone.
        limit: seconds to wait for the other nodes.

    Raises:
        LaunchError: rank 0 cannot be reached.
    """

    def __init__(self, me: Worker | None, limit: float) -> None:
        self.rank, self.size = (me.rank, me.world_size) if me else (0, 1)
        self.store = _store(me, limit) if me is not None and me.world_size > 1 else None
        came = self.exchange("came", host(), limit)
        self.hosts = [name or host_of(rank, os.environ) for rank, name in enumerate(came)]
        """The host of each rank."""
        missing = [rank for rank, name in enumerate(came) if name is None]
        absent = self._from_rank_0("absent", _absent(missing, self.hosts, limit) if missing else "", limit)
        self.absent = "rank 0 is gone" if absent is None else str(absent)
        """A message of rank 0 that names the missing nodes; empty: all have come."""

    def exchange(self, name: str, value: Any, limit: float) -> list[Any | None]:
        """Each rank's ``value`` (plain data), in rank order; None for a rank that is later than ``limit`` seconds."""
        if self.store is None:
            return [value]
        self.store.set(f"{name}/{self.rank}", json.dumps(value))
        deadline = time.monotonic() + limit
        return [self._read(f"{name}/{rank}", deadline) for rank in range(self.size)]

    def _read(self, key: str, deadline: float) -> Any | None:
        assert self.store is not None
        left = max(0.001, deadline - time.monotonic())
        with suppress(dist.DistStoreError, dist.DistNetworkError):  # too late, or rank 0 has ended with its store
            if not self.store.check([key]):  # a wait of a millisecond is too short for a store on a busy machine
                self.store.wait([key], timedelta(seconds=left))
            return json.loads(self.store.get(key))
        return None

    def _from_rank_0(self, name: str, value: Any, limit: float) -> Any | None:
        # None if rank 0 has ended.
        if self.store is None:
            return value
        if self.rank == 0:
            self.store.set(f"{name}/0", json.dumps(value))
            return value
        return self._read(f"{name}/0", time.monotonic() + limit)

    def clock(self, limit: float) -> float:
        """The time on this node (seconds since the epoch) at a moment that all nodes share up to milliseconds."""
        self.exchange("before the clocks", True, limit)
        if self.store is not None:
            if self.rank == 0:
                self.store.set("now", "")
            with suppress(dist.DistStoreError, dist.DistNetworkError):
                self.store.wait(["now"], timedelta(seconds=limit))
        return time.time()

    def conclude(self, code: int, limit: float) -> int:
        """Rank 0's exit code, on all ranks; that of an error if rank 0 has ended."""
        concluded = self._from_rank_0("code", code, limit)
        with suppress(dist.DistStoreError, dist.DistNetworkError):
            self.exchange("heard", True, _LINGER if self.rank == 0 else 0.0)
        return LaunchError.exit_code if concluded is None else int(concluded)


def meet(limit: float) -> Meeting:
    """Meet the other nodes of the launcher's job within ``limit`` seconds.

    Raises:
        LaunchError: rank 0 cannot be reached, this node has several processes, or others have none.
    """
    me = worker()
    if me is None and int(os.environ.get("SLURM_JOB_NUM_NODES", "1")) > 1:
        raise LaunchError(
            f"--on-nodes: this job has {os.environ['SLURM_JOB_NUM_NODES']} nodes, and this is a process on one of "
            "them; put `srun --ntasks-per-node=1` before the line"
        )
    if me is not None and me.local_world_size > 1:
        raise LaunchError(
            f"--on-nodes: {me.local_world_size} processes were started on {host()}; start one on each node "
            "(srun --ntasks-per-node=1)"
        )
    return Meeting(me, limit)


def _store(me: Worker, limit: float) -> dist.Store:
    try:
        return meeting_store(me, timedelta(seconds=limit), wait=False)
    except (dist.DistError, RuntimeError) as error:
        where: Mapping[str, str] = me.rendezvous
        place = f"{where.get('MASTER_ADDR')}:{where.get('MASTER_PORT')}"
        text = str(error).partition("\n")[0]
        raise LaunchError(f"{host()} does not reach rank 0 at {place} within {limit:g} s ({text})") from error


def _absent(missing: list[int], hosts: list[str], limit: float) -> str:
    named = [f"rank {rank}{f' (host {hosts[rank]})' if hosts[rank] else ''}" for rank in missing]
    return (
        f"{', '.join(named)} of {len(hosts)} {'have' if len(named) > 1 else 'has'} not come within {limit:g} s: the "
        "machine cannot be reached, or the command could not start there; its own message may be in the log"
    )
