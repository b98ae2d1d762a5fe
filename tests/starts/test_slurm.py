"""Runs that `recipe submit` gives to a real Slurm, and their interruptions: all resume and end with the same losses.

``nox -s slurm`` runs these tests, where Slurm's daemons are installed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import slow_toy
from cluster import Cluster, cluster, missing
from fault_table import ROWS, Row
from slow_toy import curve

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(900),
]
SITE = "environment: {MASTER_ADDR: 127.0.0.1, GLOO_SOCKET_IFNAME: lo}\n"
"""The names of the nodes cannot be resolved: both are this machine."""
SRUN = "srun on two nodes"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")
STOPPED = 75
CAMPAIGN = Path(__file__).parents[1] / "faults" / "campaign"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster and run the tests in its folder; the slow toy is its only plugin."""
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        slow_toy.install(folder, patch)
        patch.setenv("RECIPE_SITE", str(folder / "site.yaml"))
        patch.chdir(folder)
        (folder / "site.yaml").write_text(SITE)
        with cluster(folder) as started:
            started.recipe("run", "slow", "--processes", "2", "--out", "uninterrupted")
            yield started


def submit(here: Cluster, out: str, *words: str, seconds: float = 0.8, time: str = "20m") -> str:
    """Submit a job of two nodes; return its id."""
    nodes = ("--nodes", "2", "--processes-per-node", "1", "--time", time)
    return here.recipe("submit", "slow", f"data.seconds={seconds}", *nodes, "--out", out, *words).split()[1].rstrip(":")


def facts(here: Cluster, out: str) -> dict[str, object]:
    """Return the output of `recipe status`."""
    answer: dict[str, object] = json.loads(here.recipe("status", out, "--json"))
    return answer


def underway(here: Cluster, out: str) -> None:
    """Wait until a run has saved a checkpoint and taken some more steps."""
    here.wait(lambda: int(str(facts(here, out)["step"])) >= 13, 120, f"step 13 of {out}")


def ended(here: Cluster, job: str, seconds: float = 240) -> str:
    """Wait for the end of a job; return its state."""
    here.wait(lambda: here.state(job) in ENDED, seconds, f"end of job {job}")
    return here.state(job)


def log(out: str) -> str:
    """Return the output of rank 0 and of the scripts of a run, for the message of a failure."""
    return "\n".join(path.read_text()[-3000:] for path in sorted((Path(out) / "logs").glob("*.log")))


def finished(here: Cluster, out: str, job: str, *, restarts: int) -> None:
    """Compare a run with an uninterrupted one."""
    assert ended(here, job) == "COMPLETED", log(out)
    assert here.restarts(job) == restarts
    assert facts(here, out)["state"] == "finished"
    assert curve(out) == curve("uninterrupted")


def requeue(here: Cluster, job: str) -> None:
    here.run("scontrol", "requeue", job)


def preempt(here: Cluster, job: str) -> None:
    here.run("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap", "sleep 3")


@pytest.mark.parametrize(
    ("name", "interrupt", "partition"),
    [
        ("requeued", requeue, "low"),
        ("preempted-at-once", preempt, "low"),
        ("preempted-with-grace", preempt, "graceful"),
    ],
)
def test_a_job_that_is_started_again_ends_with_the_same_curve(
    here: Cluster, name: str, interrupt: Callable[[Cluster, str], None], partition: str
) -> None:
    site = here.folder / f"{partition}.yaml"
    site.write_text(f"{SITE}slurm: {{partition: {partition}}}\n")
    job = submit(here, name, "--site", str(site))
    underway(here, name)
    interrupt(here, job)
    finished(here, name, job, restarts=1)


@dataclass(frozen=True)
class JobFault:
    """A fault of a job and its consequences."""

    name: str
    comment: str
    """A pattern for the diagnosis in Slurm's comment."""
    restarts: int = 0
    code: int = 0
    """Exit code of the job, if it is not restarted."""
    within: float = 30.0
    """Seconds until the nodes are free."""


SILENT = r"lost: rank 1 on n[12]: rank 1 of 2 \(host n[12]\) has given no sign of life for \d+ s"
FAULTS = [
    JobFault("killed", SILENT, restarts=1),  # srun ends with 137, the highest code of both ranks
    JobFault("segfault", SILENT, restarts=1),
    JobFault("abort", SILENT, restarts=1),
    JobFault(
        "exception", r"bug: rank 1 on n[12]: no such step", code=70
    ),  # srun ends with 75, the code of the other rank
    JobFault("hang", r"hung: rank 1 on n[12]: .* has been in 'loader' of step \d+ for \d+ s", restarts=1, within=60.0),
    JobFault(
        "mistake",
        r"mistake: rank \d on n[12]: the ranks do not agree, .*: variable NCCL_ALGO: not there on rank 0",
        code=2,
    ),
    JobFault("node down", "", restarts=1, within=90.0),
    JobFault("full disk", r"disk: rank \d on n[12]: .* was not saved", code=74),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_of_a_job(here: Cluster, monkeypatch: pytest.MonkeyPatch, fault: JobFault) -> None:
    monkeypatch.syspath_prepend(str(CAMPAIGN))
    import filled

    with filled.mounted(here.folder / "disk") as disk:
        out, words = "disk/out", ["train.timeout=15"]
        if fault.name == "mistake":
            words += ["--site", str(_unequal(here))]
        job = submit(here, out, *words)
        if fault.name != "mistake":
            underway(here, out)
        began = time.monotonic()
        if fault.name in slow_toy.FAULTS:
            slow_toy.break_rank(here.folder, fault.name)
        elif fault.name == "node down":
            here.kill_node("n2")
        elif fault.name == "full disk":
            filled.fill(disk, "bytes", 0)
        free = ("PENDING",) if fault.restarts else ENDED
        here.wait(lambda: here.state(job) in free, 200, "end of a start")
        seconds = time.monotonic() - began
        comment = here.field(job, "Comment")
        if fault.name == "node down":
            here.start_node("n2")
        if fault.name == "full disk":
            filled.make_room(disk)
        code = here.field(job, "ExitCode").partition(":")[0]
        if not fault.restarts:
            assert ended(here, job) == "FAILED", log(out)
            assert (here.restarts(job), code) == (0, str(fault.code)), comment
            again = "no"
            job = submit(here, out, "train.timeout=15")
        else:
            code, again = "-", "Slurm"
        finished(here, out, job, restarts=fault.restarts)
        ROWS.append(Row(fault.name, SRUN, code, comment, again, seconds, "equal"))
        assert re.match(fault.comment, comment), comment
        assert seconds < fault.within


def _unequal(here: Cluster) -> Path:
    """Write a site whose second node has a variable that the first lacks: the run refuses to start there."""
    program = here.folder / "unequal.sh"
    python = f"{sys.executable} -m recipe_core.cli"
    program.write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != n2 ] || export NCCL_ALGO=Ring\nexec {python} "$@"\n')
    program.chmod(0o755)
    site = here.folder / "unequal.yaml"
    site.write_text(f"{SITE}program: {program}\n")
    return site


def test_a_job_is_started_again_without_the_node_of_the_rank_that_failed(here: Cluster) -> None:
    site = here.folder / "exclude.yaml"
    site.write_text(f"{SITE}slurm: {{exclude_failing: true}}\n")
    words = ("--nodes", "1", "--processes-per-node", "2", "--time", "20m", "--site", str(site), "--out", "moved")
    job = here.recipe("submit", "slow", "data.seconds=0.8", *words).split()[1].rstrip(":")
    underway(here, "moved")
    record = json.loads(Path("moved/logs/rank-1.beat.json").read_text())
    os.kill(int(record["pid"]), signal.SIGKILL)
    finished(here, "moved", job, restarts=1)
    script = Path(f"moved/logs/slurm-{job}.log").read_text()
    assert f"recipe: starts again without node {record['host']}\n" in script
    assert json.loads(Path("moved/logs/rank-1.beat.json").read_text())["host"] != record["host"]


def test_a_job_at_its_time_limit_saves_and_is_started_again(here: Cluster) -> None:
    job = submit(here, "limit", "--stop-before", "45", seconds=2.0, time="2m")
    assert ended(here, job, 700) == "COMPLETED", log("limit")
    assert here.restarts(job) >= 1
    assert "TIME LIMIT" not in log("limit")  # the run stopped before it
    assert curve("limit") == curve("uninterrupted")
    ROWS.append(Row("time limit", SRUN, "-", here.field(job, "Comment"), "Slurm", None, "equal"))


def test_a_job_that_is_told_to_stop_saves_and_goes_on_when_it_is_submitted_again(here: Cluster) -> None:
    job = submit(here, "stopped")
    underway(here, "stopped")
    assert "stopped: stopped" in here.recipe("stop", "stopped")
    ended(here, job)
    assert here.restarts(job) == 0
    now = facts(here, "stopped")
    assert (now["state"], now["exit_code"], now["saved_step"]) == ("stopped", STOPPED, now["step"])
    finished(here, "stopped", submit(here, "stopped"), restarts=0)


def test_a_job_that_is_cancelled_saves_and_is_not_started_again(here: Cluster) -> None:
    job = submit(here, "cancelled")
    underway(here, "cancelled")
    began = time.monotonic()
    here.run("scancel", job)
    assert ended(here, job) == "CANCELLED"
    seconds = time.monotonic() - began
    line = here.recipe("status", "cancelled").partition("\n")[0]
    assert facts(here, "cancelled")["state"] == "stopped", log("cancelled")
    time.sleep(8)  # longer than Slurm takes to restart it
    assert here.state(job) == "CANCELLED"
    finished(here, "cancelled", submit(here, "cancelled"), restarts=0)
    ROWS.append(Row("scancel", SRUN, "-", line, "no", seconds, "equal"))


def test_a_job_that_waits_is_cancelled_by_stop(here: Cluster) -> None:
    job = submit(here, "waiting", "--site", str(_held(here)))
    assert facts(here, "waiting")["state"] == "waiting"
    here.recipe("stop", "waiting")
    assert ended(here, job) == "CANCELLED"
    assert facts(here, "waiting")["state"] == "new"


def _held(here: Cluster) -> Path:
    site = here.folder / "held.yaml"
    site.write_text(f"{SITE}slurm: {{options: [--hold]}}\n")
    return site


def test_a_path_that_a_shell_would_take_apart_is_one_to_slurm(here: Cluster) -> None:
    name = 'it\'s 100%j "of" $run #1'
    job = submit(here, name, "train.steps=20", seconds=0.0)
    assert ended(here, job) == "COMPLETED", log(name)
    assert curve(name)[-1][0] == 20
    assert {path.name for path in (Path(name) / "logs").iterdir()} >= {f"slurm-{job}.log"}


def test_an_array_trains_a_seed_in_each_folder_and_one_of_them_is_stopped(here: Cluster) -> None:
    job = submit(here, "array", "--array", "3")
    underway(here, "array/seed-0")
    here.recipe("stop", "array/seed-1")
    here.wait(lambda: set(here.state(job).split()) <= {*ENDED}, 400, "end of the array")
    assert curve("array/seed-0") == curve("uninterrupted")
    assert facts(here, "array/seed-1")["state"] in ("stopped", "new")
    assert facts(here, "array/seed-2")["state"] == "finished"
    assert curve("array/seed-2") != curve("array/seed-0")


def test_the_nodes_of_a_job_are_looked_at_first(here: Cluster) -> None:
    """The second node has a variable that the first lacks: the run would refuse to start, but only after loading."""
    job = submit(here, "looked-at", "--check-nodes", "data.seconds=0.0")
    finished(here, "looked-at", job, restarts=0)
    rows = Path(f"looked-at/logs/slurm-{job}.log").read_text()
    assert re.search(r"^n1 +2 cores .* n2: [\d.]+ .B/s, \d+ us +\+0\.00 s$", rows, re.MULTILINE), rows
    assert "2 nodes: no problem found" in rows

    job = submit(here, "unequal", "--check-nodes", "--site", str(_unequal(here)))
    assert ended(here, job) == "FAILED", log("unequal")
    assert here.restarts(job) == 0
    now = facts(here, "unequal")
    reason = "variable NCCL_ALGO: not there on rank 0 (n1), Ring on rank 1 (n2)"
    assert (now["state"], now["exit_code"], now["detail"]) == ("failed", 2, f"mistake: {reason}")
    assert here.field(job, "Comment").startswith(f"mistake: {reason}")
