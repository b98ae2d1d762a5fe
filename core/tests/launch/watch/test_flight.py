"""Pending collectives, from PyTorch's flight recorder of gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from recipe_core.engine.protocol import start
from recipe_core.hooks.train import Train
from recipe_core.launch.watch import flight
from recipe_core.testing import spawn


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def look(joined: Path, seen: dict[str, Any]) -> None:
    """Inspect the collective in which rank 0 waits twice, then let rank 1 join it."""
    until(lambda: bool(flight.pending()))
    seen["earliest"] = time.time()
    time.sleep(0.5)  # so that its age is no longer 0
    before = time.time()
    seen["waiting"] = flight.pending()
    seen["age"] = [before - seen["earliest"], time.time() - seen["began"]]
    joined.touch()


def two_ranks(folder: str) -> dict[str, Any]:
    """Return what rank 0 sees pending after several collectives, and while it waits in one for rank 1."""
    joined = Path(folder) / "joined"
    seen: dict[str, Any] = {}
    with start(Train(device="cpu", timeout=300)) as engine:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True)  # never waited for
        engine.gather("value")
        engine.barrier()
        until(lambda: flight.pending() == [])  # gloo's thread records the end of the one that nothing waits for
        engine.barrier()
        if engine.rank == 1:
            until(joined.exists)
        else:
            seen["began"] = time.time()
            looks = threading.Thread(target=look, args=(joined, seen))
            looks.start()
        dist.all_reduce(torch.ones(3))
        if engine.rank == 0:
            looks.join()
    return seen


def test_what_is_under_way(tmp_path: Path) -> None:
    seen, _ = spawn(two_ranks, 2, str(tmp_path))
    (one,) = seen["waiting"]
    assert (one["name"], one["started"]) == ("gloo:all_reduce", False)
    least, most = seen["age"]
    assert 0.5 <= least <= most
    assert least - 0.05 <= one["seconds"] <= most + 0.05  # it is rounded to tenths
    assert isinstance(one["thread"], int)
    assert one["number"] > 2


def test_a_collective_that_was_left_open_is_over() -> None:
    entry = {"retired": False, "pg_id": 0, "collective_seq_id": 3, "is_p2p": False}
    status = {"0": {"last_completed_collective": "3"}}
    assert flight._is_over(entry, status)  # left open: its group has completed it
    assert not flight._is_over({**entry, "collective_seq_id": 4}, status)
    assert not flight._is_over({**entry, "is_p2p": True}, status)
    assert not flight._is_over(entry, {})
