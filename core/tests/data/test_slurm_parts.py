"""The executor ``slurm`` with a stand-in for Slurm; tests/starts has the real one."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recipe_core.data.prepare.executors import slurm as module
from recipe_core.data.prepare.executors.slurm import slurm
from recipe_core.errors import ConfigError, LaunchError
from recipe_core.hooks.specs.executor import ExecutorRun, PartTask, Submit
from recipe_core.launch.launchers.slurm import Slurm

PROGRAM = ("bash", "-c", 'echo "$X: $@"; exit "${!#}"', "recipe")
"""Stands in for ``recipe``: it ends with the code that is its last argument."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of jobs; the commands are on the path."""
    commands, jobs = tmp_path / "bin", tmp_path / "jobs"
    commands.mkdir()
    jobs.mkdir()
    code = Path(__file__).with_name("slurm_stand_in.py").read_text()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (commands / name).write_text(f"#!{sys.executable}\n{code}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_STAND_IN", str(jobs))
    for name, seconds in (("LOOK", 0.05), ("ASK", 0.2), ("LATE", 0.5)):
        monkeypatch.setattr(module, name, seconds)
    return jobs


def task(folder: Path, number: int, code: str = "0") -> PartTask:
    log = folder / "my logs" / f"{number}.log"
    log.parent.mkdir(exist_ok=True)
    return PartTask(number=number, arguments=("prepare", "it's", f"part={number}", code), folder=folder, log=log)


@contextmanager
def submitting(folder: Path, address: str = "", setup: str = "", **config: Any) -> Iterator[Submit]:
    own = folder / "50% done"
    own.mkdir(exist_ok=True)
    run = ExecutorRun(
        name="prepare-x", address=address, folder=own, cpus=3, program=PROGRAM, setup=setup, environment={"X": "a b"}
    )
    with slurm(Slurm(**config), run) as submit:
        yield submit


def results(futures: list[Future[int]]) -> list[int]:
    return [future.result(timeout=60) for future in futures]


def test_parts_are_tasks_of_arrays_as_large_as_slurm_takes(cluster: Path, tmp_path: Path) -> None:
    """Indices are limited to 4 here, so that 12 parts are three arrays."""
    with submitting(tmp_path, partition="cpu", options=("--time=10",), setup="pwd > setup") as submit:
        futures = [*submit([task(tmp_path, number) for number in range(1, 13)])]
        assert results(futures) == [0] * 12
    scripts = [(cluster / f"{job}.sh").read_text() for job in (1, 2, 3)]
    assert [line for text in scripts for line in text.splitlines() if "--array" in line] == [
        "#SBATCH --array=1-4", "#SBATCH --array=0-4", "#SBATCH --array=0-2",
    ]  # fmt: skip
    for option in ("job-name=prepare-x", "partition=cpu", "time=10", "cpus-per-task=3", "requeue"):
        assert f"#SBATCH --{option}\n" in scripts[0]
    assert (tmp_path / "my logs/7.log").read_text() == "a b: prepare it's part=7 0\n"
    assert (tmp_path / "setup").read_text() == f"{tmp_path}\n"
    assert list((tmp_path / "50% done").iterdir()) == []
    assert not (cluster / "cancelled").exists()


def test_exit_codes_and_lost_tasks(cluster: Path, tmp_path: Path) -> None:
    (cluster / "loses").write_text("2 NODE_FAIL")
    with submitting(tmp_path) as submit:
        first, lost, killed = submit([task(tmp_path, 1, "2"), task(tmp_path, 2), task(tmp_path, 3, "137")])
        assert results([first, killed]) == [2, 137]
        with pytest.raises(LaunchError, match="Slurm's task 1_2 ended without an exit code, NODE_FAIL"):
            lost.result(timeout=60)
        (again,) = submit([task(tmp_path, 2)])
        assert again.result(timeout=60) == 0
        script = (cluster / "2.sh").read_text()
        assert "#SBATCH --array=2\n" in script
        assert shlex.quote("it's") in script


def test_a_task_that_says_nothing_is_lost_after_a_while(cluster: Path, tmp_path: Path) -> None:
    with submitting(tmp_path, setup="echo no module of this name; exit 1") as submit:
        (future,) = submit([task(tmp_path, 1)])
        with pytest.raises(LaunchError, match="1_1 ended without an exit code, COMPLETED: no module of this name"):
            future.result(timeout=60)


def test_a_cancelled_task_is_not_lost(cluster: Path, tmp_path: Path) -> None:
    (cluster / "loses").write_text("1 CANCELLED")
    with submitting(tmp_path) as submit:
        (future,) = submit([task(tmp_path, 1)])
        with pytest.raises(CancelledError):
            future.result(timeout=60)


def test_jobs_end_with_the_executor(cluster: Path, tmp_path: Path) -> None:
    with submitting(tmp_path, setup="touch began; exec sleep 600") as submit:
        futures = submit([task(tmp_path, 1), task(tmp_path, 6)])
        while not (tmp_path / "began").exists():
            assert not wait(futures, timeout=0.05).done
    assert (cluster / "cancelled").read_text() == "1 2\n"


def test_jobs_of_a_killed_command_are_not_doubled(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "50% done").mkdir()
    (tmp_path / "50% done/jobs").write_text("1\n2\n")
    (cluster / "1_1").write_text("COMPLETED")
    (cluster / "2_3").write_text("PENDING")
    refused = pytest.raises(LaunchError, match=r"jobs of an earlier command .* still wait or run; .*: scancel 2$")
    with refused, submitting(tmp_path):
        pass
    (cluster / "2_3").write_text("CANCELLED")
    with submitting(tmp_path) as submit:
        assert results([*submit([task(tmp_path, 1)])]) == [0]
    assert list((tmp_path / "50% done").iterdir()) == []


def test_what_it_refuses(cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ConfigError, match="--on slurm:here: Slurm takes no address"),
        submitting(tmp_path, address="here"),
    ):
        pass
    (cluster / "refuses").write_text("sbatch: error: invalid partition")
    failed = pytest.raises(LaunchError, match="sbatch failed with exit code 1: sbatch: error: invalid partition")
    with failed, submitting(tmp_path) as submit:
        submit([task(tmp_path, 1)])
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = pytest.raises(
        LaunchError, match=r"scontrol is not on the path: .*; start it on one, or make the parts with"
    )
    with missing, submitting(tmp_path):
        pass
