"""Run folders: never one of another run, and the same on every rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recipe_core.errors import ConfigError, DiskError, LaunchError
from recipe_core.files import aside
from recipe_core.launch.worker import Worker, worker
from recipe_core.train.start.destination import new_folder, require_run_folder, shared_folder


def ranked(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Worker:
    """This process as a rank."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = worker()
    assert found is not None
    return found


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "node[1-2]",
}


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260102-030405")
    folders = [new_folder("gpt:6.7b") for _ in range(3)]
    assert [str(f) for f in folders] == [f"runs/gpt-6.7b-20260102-030405{end}" for end in ("", "-2", "-3")]
    assert all(folder.is_dir() for folder in folders)


def test_a_name_without_anything_else_has_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.fullmatch(r"runs/gpt-\d{8}-\d{6}", str(new_folder("gpt")))


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").touch()
    with pytest.raises(DiskError, match=r"^runs"):
        new_folder("gpt")


def test_ranks_of_slurm_share_job_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(shared_folder("gpt:tiny", ranked(monkeypatch, **SRUN))) == "runs/gpt-tiny-slurm-77.0"


def test_ranks_of_torchrun_share_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = ranked(monkeypatch, **TORCHRUN, TORCHELASTIC_RUN_ID="a b/c")
    assert str(shared_folder("gpt", rank)) == "runs/gpt-a-b-c"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_of_an_unnamed_torchrun_on_one_machine_share_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from recipe_core.train.start.destination import shared_folder; from recipe_core.launch.worker import worker; "
        "print(shared_folder('gpt', worker()))"
    )
    found = set()
    for rank in ("0", "1"):
        env = {**os.environ, **TORCHRUN, "RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "4"}
        env["TORCHELASTIC_RUN_ID"] = "none"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        found.add(done.stdout.strip())
    (folder,) = found
    assert re.fullmatch(rf"runs/gpt-torchrun-{os.getpid()}-\d+", folder)


@pytest.mark.parametrize("name", [{}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_an_unnamed_torchrun_of_several_machines_needs_a_folder(
    name: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    rank = ranked(monkeypatch, **TORCHRUN, **name, LOCAL_WORLD_SIZE="2")
    with pytest.raises(LaunchError, match="add --out DIR"):
        shared_folder("gpt", rank)


JOB = "recipe: a\nmodel: {use: m}\ndata: {use: d}\nlayout: {use: l}\ncheckpoint: {use: c}\ntrain: {}\n"


@pytest.mark.parametrize("text", ["apiVersion: batch/v1\nkind: Job\n", "recipe: a\n", f"# mine\n{JOB}", "a: [", ""])
def test_a_job_yaml_of_something_else_makes_no_run_folder(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"is not a run folder \(.*job.yaml is none that a run wrote\); give another"):
        require_run_folder(tmp_path)


def test_what_a_run_may_begin_in(tmp_path: Path) -> None:
    require_run_folder(tmp_path / "new")
    for name in ("logs", "dry-run"):
        (tmp_path / name).mkdir()
    for name in ("agreement", "job.yaml"):  # what a run leaves that is killed while it writes them
        aside(tmp_path / name).touch()
    require_run_folder(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"is not a run folder \(no job.yaml in it\)"):
        require_run_folder(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    require_run_folder(tmp_path)
