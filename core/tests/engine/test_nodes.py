"""Nodes that meet before a run: they exchange values, name missing nodes, and measure their links."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from recipe_core.engine.nodes import devices, links, meeting
from recipe_core.engine.nodes.meeting import Meeting, meet
from recipe_core.errors import ConfigError, LaunchError
from recipe_core.launch.cores import usable_cores
from recipe_core.launch.worker import Worker

LONG = 120.0
"""Seconds that no test waits for."""


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def worker(rank: int, size: int, at: int) -> Worker:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(at)}
    return Worker(rank=rank, world_size=size, local_rank=0, local_world_size=1, launcher="srun", rendezvous=place)


def each(
    size: int, action: Callable[[Meeting], Any], *, limit: float = LONG, absent: tuple[int, ...] = ()
) -> list[Any]:
    """Call ``action`` in a thread per rank and return the results; ``absent`` ranks never start."""
    at = port()
    with ThreadPoolExecutor(size) as pool:
        ranks = [rank for rank in range(size) if rank not in absent]
        return list(pool.map(lambda rank: action(Meeting(worker(rank, size, at), limit)), ranks))


def test_all_hear_all() -> None:
    def talk(here: Meeting) -> Any:
        facts = here.exchange("fact", {"rank": here.rank}, LONG)
        here.clock(LONG)
        return facts, here.absent, here.conclude(2 if here.rank == 0 else 0, LONG)

    for facts, absent, code in each(3, talk):
        assert facts == [{"rank": 0}, {"rank": 1}, {"rank": 2}]
        assert (absent, code) == ("", 2)  # rank 0's


def test_one_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "host_of", lambda rank, env: f"n{rank}")
    first, third = each(3, lambda here: here, limit=3.0, absent=(1,))  # which keep the store
    assert first.absent.startswith("rank 1 (host n1) of 3 has not come within 3 s: the machine cannot be reached")
    assert third.absent == first.absent


def test_rank_0_that_cannot_be_reached() -> None:
    with pytest.raises(LaunchError, match=r"does not reach rank 0 at 127.0.0.1:\d+ within 0.1 s"):
        Meeting(worker(1, 2, port()), 0.1)


def test_one_that_ends_in_between_gives_no_answer() -> None:
    def talk(here: Meeting) -> Any:
        return here.exchange("fact", True, 0.5) if here.rank == 0 else None

    assert each(2, talk)[0] == [True, None]


def test_the_links_of_a_ring() -> None:
    assert [list(links.pairs(size)) for size in range(1, 6)] == [
        [], [[(0, 1)]], [[(0, 1)], [(1, 2)], [(2, 0)]], [[(0, 1), (2, 3)], [(1, 2), (3, 0)]],
        [[(0, 1), (2, 3)], [(1, 2), (3, 4)], [(4, 0)]],
    ]  # fmt: skip
    found = each(3, lambda here: links.measure(here, "cpu", LONG))
    for link in found:
        assert link["problem"] == ""
        assert link["bandwidth"] > 1e6
        assert 0 < link["latency"] < 1
    assert each(1, lambda here: links.measure(here, "cpu", LONG)) == [{}]


def test_a_link_whose_other_end_does_not_answer() -> None:
    def measure(here: Meeting) -> Any:
        if here.rank == 0:
            return links.measure(here, "cpu", 0.5)
        here.exchange("round 0", True, LONG)
        return {}

    link = each(2, measure)[0]
    assert link["bandwidth"] == 0.0
    assert link["problem"]


def test_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    with pytest.raises(LaunchError, match=r"this job has 4 nodes.*put `srun --ntasks-per-node=1` before the line"):
        meet(LONG)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    assert meet(LONG).hosts == [meeting.host()]
    line = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }
    for name, value in line.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"2 processes were started on .*; start one on each node"):
        meet(LONG)


def test_the_devices_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.look("cpu", "native") == {"kind": "cpu", "count": usable_cores(), "name": "cores"}
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available: None)
    with pytest.raises(ConfigError, match=r"train\.device: 'cuda' is not available here"):
        devices.look("cuda", "native")


def test_devices_that_pytorch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a machine with two GPUs, one of which another program fills."""
    gpu = type("Gpu", (), {"get_device_name": staticmethod(lambda number: "H100")})
    monkeypatch.setattr(devices, "device_kind", lambda name: "cuda")
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 2)
    monkeypatch.setattr("torch.accelerator.get_memory_info", lambda number: ([79, 3][number], 80))
    monkeypatch.setattr("torch.get_device_module", lambda kind: gpu)
    assert devices.look("auto", "native") == {"kind": "cuda", "count": 2, "name": "H100", "free": 3, "total": 80}
