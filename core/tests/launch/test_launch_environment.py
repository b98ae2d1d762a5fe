"""Which rank a process is, by what torchrun, srun or our supervisor left in its environment."""

from __future__ import annotations

import pytest

from recipe_core.errors import LaunchError
from recipe_core.launch.worker import Worker, first_host, worker

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "7",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_NODELIST": "node[02-03]",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
}  # fmt: skip


def test_a_process_that_nobody_started_as_a_rank_is_none() -> None:
    assert worker({}) is None
    assert worker({"MASTER_ADDR": "a", "MASTER_PORT": "7"}) is None
    assert worker({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None  # a batch script
    assert worker(SRUN | {"SLURM_STEP_NUM_TASKS": "1"}) is None


def test_torchrun() -> None:
    assert worker(TORCHRUN) == Worker(3, 4, 1, 2, "torchrun", {"MASTER_ADDR": "a", "MASTER_PORT": "7"})
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    assert worker(alone) == Worker(0, 1, 0, 1, "torchrun", {})


def test_our_supervisor() -> None:
    found = worker({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "RECIPE_STORE": "/tmp/store"})
    assert found == Worker(1, 2, 1, 2, "recipe", {"RECIPE_STORE": "/tmp/store"})


def test_srun() -> None:
    found = worker(SRUN)
    assert found is not None
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (4, 6, 0, 2)
    assert found.launcher == "srun"
    assert found.rendezvous == {"MASTER_ADDR": "node02", "MASTER_PORT": str(10_000 + 1234 * 31 % 20_000)}
    assert worker(found.variables() | {"SLURM_STEP_ID": "0"}) == Worker(4, 6, 0, 2, "torchrun", found.rendezvous)


def test_srun_takes_a_given_meeting_point_and_no_half_of_torchruns() -> None:
    found = worker(SRUN | {"MASTER_ADDR": "head", "MASTER_PORT": "29500", "WORLD_SIZE": "6"})
    assert found is not None
    assert found.launcher == "srun"
    assert found.rendezvous == {"MASTER_ADDR": "head", "MASTER_PORT": "29500"}


def test_srun_ports_differ_between_the_steps_and_jobs_of_one_time() -> None:
    ports = set()
    for job in range(900_000, 900_020):
        for step in range(20):
            found = worker(SRUN | {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
            assert found is not None
            assert 1024 < int(found.rendezvous["MASTER_PORT"]) < 32768
            ports.add(found.rendezvous["MASTER_PORT"])
    assert len(ports) == 400


def test_ranks_of_a_node_come_from_slurms_short_form() -> None:
    counts = []
    for node in range(4):
        found = worker(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NODEID": str(node)})
        assert found is not None
        counts.append(found.local_world_size)
    assert counts == [2, 2, 1, 1]  # there is no fourth node: as far as it is known


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"), ("node1,node2", "node1"), ("node[01-04,07]", "node01"), ("node[7,9-12],b", "node7"),
        ("rack[1-2]node[3-4].site", "rack1node3.site"), ("node[007]", "node007"), ("ip-10-0-0-1,x", "ip-10-0-0-1"),
    ],
)  # fmt: skip
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "says RANK but not WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "says RANK, WORLD_SIZE but not LOCAL_RANK;"),
        ({"LOCAL_RANK": "0", "RECIPE_STORE": "x"}, "says LOCAL_RANK but not RANK, WORLD_SIZE;"),
        ({k: v for k, v in TORCHRUN.items() if k != "MASTER_PORT"}, "but not MASTER_PORT;"),
        (TORCHRUN | {"RANK": "x"}, "RANK='x'; expected a number"),
        (TORCHRUN | {"RANK": "4"}, "rank 4 .* of 4 ranks cannot be"),
        (TORCHRUN | {"LOCAL_RANK": "-1"}, "local rank -1"),
        ({k: v for k, v in SRUN.items() if k != "SLURM_PROCID"}, "SLURM_STEP_ID but not SLURM_PROCID"),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, "names no host; set MASTER_ADDR"),
    ],
)
def test_half_an_environment_says_what_is_missing(environment: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        worker(environment)
