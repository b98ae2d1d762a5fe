"""Collectives under way, as PyTorch's flight recorder of gloo knows them."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

from recipe_core.engine.protocol import start
from recipe_core.hooks.train import Train
from recipe_core.launch.watch import flight
from recipe_core.testing import spawn


def two_ranks() -> list[object]:
    """Rank 0: what is under way after several collectives, and while it waits in one for the other rank."""
    seen: list[object] = []
    with start(Train(device="cpu", timeout=60)) as engine:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True)  # never waited for
        engine.gather("value")
        engine.barrier()
        time.sleep(0.5)
        seen.append(flight.pending())
        engine.barrier()
        if engine.rank == 1:
            time.sleep(1.5)
        else:
            timer = threading.Timer(0.5, lambda: seen.append(flight.pending()))
            timer.start()
        dist.all_reduce(torch.ones(3))
        if engine.rank == 0:
            timer.join()
    return seen if engine.rank == 0 else [threading.get_ident()]


def test_what_is_under_way() -> None:
    (nothing, waiting), _ = spawn(two_ranks, 2)
    assert nothing == []
    (one,) = waiting
    assert (one["name"], one["started"]) == ("gloo:all_reduce", False)
    assert 0.3 <= one["seconds"] <= 1.5
    assert isinstance(one["thread"], int)
    assert one["number"] > 2


def test_a_collective_that_was_left_open_is_over() -> None:
    entry = {"retired": False, "pg_id": 0, "collective_seq_id": 3, "is_p2p": False}
    status = {"0": {"last_completed_collective": "3"}}
    assert flight._is_over(entry, status)  # left open: its group went on
    assert not flight._is_over({**entry, "collective_seq_id": 4}, status)
    assert not flight._is_over({**entry, "is_p2p": True}, status)
    assert not flight._is_over(entry, {})
