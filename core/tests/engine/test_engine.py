"""The engine alone in this process, and on two ranks over gloo on the loopback device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe_core.engine.machine import devices
from recipe_core.engine.machine.peaks import known_peak
from recipe_core.engine.neuron.peaks import trainium_peak
from recipe_core.engine.protocol import start
from recipe_core.errors import ConfigError, DiskFullError, ExitCode, LaunchError
from recipe_core.hooks.train import Train
from recipe_core.launch.worker import Worker
from recipe_core.testing.forks import DEADLINE

CPU = Train(device="cpu")

# What a rank does in the tests below, around their bodies; what it puts into `found` is what the test sees of it.
RANK = """
import json, os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.tensor
from recipe_core.engine.protocol import start
from recipe_core.launch.failures import explain, exit_code, record_failure
from recipe_core.launch.worker import die_with_parent
from recipe_core.hooks.train import Train
die_with_parent()
folder, timeout = Path(os.environ["TEST_FOLDER"]), float(os.environ.get("TEST_TIMEOUT", "300"))
found = {}
def until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
def body(engine):
    rank = engine.rank
BODY
def main():
    with start(Train(device="cpu", timeout=timeout)) as engine:
        body(engine)
    (folder / f"found-{engine.rank}.json").write_text(json.dumps(found))
try:
    main()
except Exception as error:
    mine = explain(error) or error
    mine.__cause__ = error if mine is not error else None
    if not record_failure(mine):
        raise mine
    sys.exit(exit_code(mine))
"""
SUPERVISE = """
import sys
from pathlib import Path
from recipe_core.launch.worker import supervise
sys.exit(supervise([sys.executable, sys.argv[1]], 2, Path(sys.argv[2])))
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "RECIPE_STORE")}
    return plain | {
        "TEST_FOLDER": str(folder), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RECIPE_GRACE": "20", **more,
    }  # fmt: skip


def program(folder: Path, body: str) -> Path:
    path = folder / "rank.py"
    path.write_text(RANK.replace("BODY", "\n".join("    " + line for line in body.strip("\n").splitlines())))
    return path


def two_ranks(folder: Path, body: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run ``body`` on two ranks under our supervisor."""
    return subprocess.run(
        [sys.executable, "-c", SUPERVISE, str(program(folder, body)), str(folder / "logs")],
        env=environment(folder, **more), capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip


def found(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "RECIPE_STORE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


# ---- one process ------------------------------------------------------------------------------------------------


def test_alone_no_process_group_is_made() -> None:
    with start(CPU) as engine:
        assert (engine.rank, engine.world_size, engine.local_rank) == (0, 1, 0)
        assert (engine.device, engine.autocast_device) == (torch.device("cpu"), "cpu")
        assert engine.mesh({"dp": 1}) is None
        assert not torch.distributed.is_initialized()
        engine.barrier()
        engine.synchronize()
        engine.end_step()
        assert engine.gather("x") == ["x"]
        assert engine.broadcast("x") == "x"
        assert (engine.any(True), engine.any(False)) == (True, False)


def test_alone_a_mean_is_the_value_in_a_type_that_holds_sums() -> None:
    with start(CPU) as engine:
        values = torch.tensor([1.5, 2.5], requires_grad=True)
        mean = engine.mean(values)
        assert torch.equal(mean, values)
        assert not mean.requires_grad
        assert mean.data_ptr() != values.data_ptr()
        for given, expected in [
            (torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32),
            (torch.float64, torch.float64), (torch.int64, torch.float64), (torch.bool, torch.float64),
        ]:  # fmt: skip
            assert engine.mean(torch.ones(2, dtype=given)).dtype == expected


def test_seed() -> None:
    with start(CPU) as engine:
        engine.seed(7)
        first = torch.rand(3)
        engine.seed(7)
        assert torch.equal(torch.rand(3), first)
        engine.seed(2**63 + 5)  # the loop mixes its seeds to 64 bits
        assert not torch.equal(torch.rand(3), first)


def test_peak_memory_is_this_programs_own() -> None:
    with start(CPU) as engine:
        before = engine.peak_memory()
        assert before is not None
        block = torch.ones(80_000_000, dtype=torch.uint8)
        grown = engine.peak_memory()
        assert grown is not None
        assert grown >= before
        assert grown > block.numel()
        # A small program whose parent (this process, with torch in it) is far larger.
        code = "from recipe_core.engine.memory import peak_resident as p; print(p())"
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE, check=True
        )
        assert int(child.stdout) < 10 * before


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"train.device: 'warp' is not available here \(found: (\w+, )?cpu\)"):
        start(Train(device="warp"))
    with pytest.raises(ConfigError, match="'cuda:1' is not available"):
        start(Train(device="cuda:1"))


def fake_accelerator(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device(kind))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)


def test_the_device_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    me = Worker(5, 8, 1, 4, "torchrun", {})
    fake_accelerator(monkeypatch, "cuda", 4)
    assert devices.device_of("auto", None) == torch.device("cuda", 0)
    assert devices.device_of("auto", me) == torch.device("cuda", 1)
    assert devices.device_of("cpu", me) == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"'xpu' is not available here \(found: cuda, cpu\)"):
        devices.device_of("xpu", me)
    fake_accelerator(monkeypatch, "cuda", 2)
    with pytest.raises(ConfigError, match="4 processes on this machine need as many cuda devices, and it has 2"):
        devices.device_of("auto", me)
    fake_accelerator(monkeypatch, "hpu", 1)
    assert devices.device_of("hpu", me) == torch.device("hpu")  # its runtime picks by local rank


def test_a_task_of_slurm_that_sees_one_device_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_accelerator(monkeypatch, "cuda", 1)
    assert devices.device_of("auto", Worker(5, 8, 1, 4, "srun", {})) == torch.device("cuda", 0)


def test_backends() -> None:
    expected = {
        "cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "neuron": "cpu:gloo,neuron:neuron", "hpu": "cpu:gloo,hpu:hccl",
        "xpu": "cpu:gloo,xpu:xccl",
    }  # fmt: skip
    assert {kind: devices.backend_of(kind) for kind in expected} == expected
    with pytest.raises(ConfigError, match="meta has no backend for several processes"):
        devices.backend_of("meta")


def test_known_peaks() -> None:
    names = {
        "NVIDIA A100-SXM4-80GB": 312, "NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H100 PCIe": 756, "NVIDIA H100 NVL": 835.5,
        "NVIDIA H200": 989.4, "NVIDIA GH200 480GB": 990, "NVIDIA B200": 2250, "NVIDIA GB200": 2500, "NVIDIA H20": 148,
        "NVIDIA L40S": 362, "NVIDIA L4": 121, "NVIDIA A10": 125, "GAUDI3": 1835,
    }  # fmt: skip
    for name, bf16 in names.items():
        peak = known_peak(name)
        assert peak is not None, name
        assert peak.bf16 == bf16, name
    assert known_peak("NVIDIA GeForce GTX 1080") is None
    trn1, trn2 = trainium_peak("trn1.32xlarge", 1), trainium_peak("trn2.48xlarge", 2)
    assert trn1 is not None
    assert trn2 is not None
    assert (trn1.bf16, trn1.fp32, trn2.bf16) == (95, 23.75, 166.75)
    assert trainium_peak("c7i.large", 1) is None


def test_the_peak_depends_on_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    with start(CPU) as engine:
        assert engine.peak_flops("bf16") is None  # of CPUs nothing is known
        monkeypatch.setattr(devices, "peak_of", lambda device: known_peak("NVIDIA A100-SXM4-80GB"))
        assert engine.peak_flops("bf16") == engine.peak_flops("bf16_mixed") == 312e12
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "highest")
        assert engine.peak_flops("fp32") == 19.5e12
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
        assert engine.peak_flops("fp32") == 156e12
        monkeypatch.setattr(devices, "peak_of", lambda device: known_peak("Tesla V100"))
        assert engine.peak_flops("bf16") is None


# ---- two processes ----------------------------------------------------------------------------------------------

TOGETHER = """
found["place"] = [engine.rank, engine.world_size, engine.local_rank, os.environ["RANK"]]
found["any"] = [engine.any(rank == 1), engine.any(rank == 0), engine.any(False), engine.any(True)]
found["gather"] = engine.gather({"rank": rank})
found["broadcast"] = engine.broadcast(["from", rank])
engine.barrier()
mesh = engine.mesh({"pp": 1, "dp": 2})
found["mesh"] = [list(mesh.mesh_dim_names), list(mesh.shape), mesh["dp"].get_local_rank(), mesh["pp"].get_local_rank()]
def mean(tensor, group=None):
    result = engine.mean(tensor, group)
    return [str(result.dtype), result.tolist()]
found["mean"] = [
    mean(torch.tensor([1.0 + rank, 5.0])), mean(torch.tensor(256.0 + 2 * rank, dtype=torch.bfloat16)),
    mean(torch.tensor([2**53 - 1, rank])), mean(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T + rank),
    mean(torch.tensor([float(rank)]), mesh["dp"].get_group()),
    mean(torch.tensor([float(rank)]), mesh["pp"].get_group()),
]
"""


def check_together(folder: Path) -> None:
    for rank, one in enumerate(found(folder)):
        assert one["place"] == [rank, 2, rank, str(rank)]
        assert one["any"] == [True, True, False, True]
        assert one["gather"] == [{"rank": 0}, {"rank": 1}]
        assert one["broadcast"] == ["from", 0]
        assert one["mesh"] == [["pp", "dp"], [1, 2], rank, 0]
        assert one["mean"] == [
            ["torch.float32", [1.5, 5.0]],
            ["torch.float32", 257.0],  # between two bf16 numbers
            ["torch.float64", [2**53 - 1, 0.5]],
            ["torch.float32", [[1.5, 3.5], [2.5, 4.5]]],
            ["torch.float32", [0.5]],
            ["torch.float32", [float(rank)]],
        ]


def test_two_ranks_under_our_supervisor(tmp_path: Path) -> None:
    done = two_ranks(tmp_path, TOGETHER)
    assert (done.returncode, done.stderr) == (0, "")
    check_together(tmp_path)


def test_the_same_program_under_torchrun(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, str(program(tmp_path, TOGETHER))],
        env=environment(tmp_path), capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_together(tmp_path)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_same_program_under_srun(tmp_path: Path) -> None:
    """As srun would start it, two tasks on one node; the port is set because the one of the job may be in use here."""
    slurm = {
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0",
        "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    path = program(tmp_path, TOGETHER)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(path)], env=environment(tmp_path, **slurm, SLURM_PROCID=rank, SLURM_LOCALID=rank),
            stderr=subprocess.PIPE, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    try:
        outcomes = [(rank.communicate(timeout=DEADLINE)[1], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [code for _, code in outcomes] == [0, 0], outcomes
    check_together(tmp_path)


def test_a_failing_rank_is_named_and_the_other_ends_with_it(tmp_path: Path) -> None:
    body = """
mesh = engine.mesh({"dp": 2})
held = torch.distributed.tensor.distribute_tensor(torch.ones(4), mesh, [torch.distributed.tensor.Replicate()])
if rank == 1:
    raise ValueError("the cause")
engine.gather(rank)
"""
    done = two_ranks(tmp_path, body)
    assert done.returncode == 70
    assert done.stderr.count("Traceback") == 1
    assert "ValueError: the cause" in done.stderr
    assert "rank 1 of 2 ended with exit code 70" in done.stderr
    assert "lost contact with another rank" in (tmp_path / "logs" / "rank-0.log").read_text()


def test_a_killed_rank_is_named_and_the_other_ends_with_it(tmp_path: Path) -> None:
    body = "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\nengine.gather(rank)"
    done = two_ranks(tmp_path, body)
    assert done.returncode == 137
    assert "rank 1 was killed (SIGKILL); out of memory" in done.stderr
    assert "lost contact with another rank" in (tmp_path / "logs" / "rank-0.log").read_text()


def test_a_rank_that_does_not_come_to_a_barrier_is_named(tmp_path: Path) -> None:
    body = """
import datetime
assert engine._timeout == datetime.timedelta(seconds=timeout)  # train.timeout, within which the ranks could meet
engine._timeout = datetime.timedelta(seconds=1)
if rank == 0:
    try:
        engine.barrier()
    finally:
        (folder / "over").touch()
else:
    until((folder / "over").exists)
"""
    done = two_ranks(tmp_path, body, TEST_TIMEOUT="3600")
    assert done.returncode == 75
    assert "recipe: rank 1 did not take part within train.timeout seconds" in done.stderr
    assert "Traceback" not in done.stderr


def test_leaving_a_failed_run_does_not_wait_for_a_collective_under_way(tmp_path: Path) -> None:
    """Rank 0 fails while rank 1 has not joined its collective; gloo alone would wait for it up to the timeout, which is
    longer than the test may take."""
    body = """
import recipe_core.engine.native as native
native._EXIT_GRACE = 0.5
if rank == 0:
    pending = dist.all_reduce(torch.ones(1), async_op=True)
    time.sleep(0.2)
    raise ValueError("the cause")
time.sleep(3600)
"""
    # what rank 1 sleeps ends by SIGTERM after the grace
    done = two_ranks(tmp_path, body, TEST_TIMEOUT="3600", RECIPE_GRACE="0.5")
    assert done.returncode == 70
    assert "ValueError: the cause" in done.stderr
    assert "Traceback" not in (tmp_path / "logs" / "rank-1.log").read_text()


def test_a_rank_that_never_starts_ends_the_meeting_at_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "RECIPE_STORE": str(tmp_path / "s")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with (
        pytest.raises(LaunchError, match=r"another rank did not take part within train\.timeout seconds"),
        start(Train(device="cpu", timeout=0.5)),
    ):
        raise AssertionError("must not be entered")
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_meeting_place_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    store.symlink_to("/dev/full")
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "RECIPE_STORE": str(store)}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DiskFullError) as raised, start(Train(device="cpu")):
        raise AssertionError("must not be entered")
    assert str(raised.value) == (
        f"{store}: needed for the ranks to meet, cannot be written (No space left on device); free some space or set "
        "TMPDIR"
    )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", ["well", "by an error"])
def test_no_run_aborts_at_its_end(tmp_path: Path, end: str) -> None:
    """Gloo's groups may abort a process that ends while they live: 8 of 100 runs without the engine's farewell."""
    body = """
mesh = engine.mesh({"dp": 2})
module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), device_mesh=mesh)
module(torch.ones(2, 4)).sum().backward()
engine.any(False)
if os.environ["TEST_END"] != "well":
    raise ValueError("both ranks fail")
"""
    expected = ExitCode.FINISHED if end == "well" else ExitCode.BUG
    for number in range(30):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = two_ranks(folder, body, TEST_END=end)
        assert done.returncode == expected, done.stderr
        logs = [(folder / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
        assert not any("terminate called" in log or "Fatal Python error" in log for log in logs), logs
