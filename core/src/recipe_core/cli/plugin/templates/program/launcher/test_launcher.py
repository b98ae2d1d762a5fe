"""The script starts the run as it was asked for, and a job can be seen and stopped."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from recipe_core import ConfigError, Submission

from recipe_new_plugin.launcher import SCRIPT, scripts, state, stop, submit
from recipe_new_plugin.plugin import Background


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    """A run of two processes."""
    return Submission(
        name="new_plugin",
        out=tmp_path / "my run",
        job="",
        seed=0,
        folder=tmp_path,
        program=("echo", "started"),
        nodes=1,
        processes_per_node=2,
        minutes=0,
        stop_seconds=30,
        exit_seconds=30,
        environment={"NEW_PLUGIN_WORD": "it's"},
        setup='echo "$PWD"',
    )


def test_the_script_starts_the_run(submission: Submission, tmp_path: Path) -> None:
    (tmp_path / SCRIPT).write_text(scripts(submission, Background())[SCRIPT])
    done = subprocess.run(["bash", tmp_path / SCRIPT], cwd="/", capture_output=True, text=True, check=True)
    out = tmp_path / "my run"
    assert done.stdout == f"/\nstarted run {out}/job.yaml --processes 2 --out {out}\n"


def test_a_time_limit_leaves_time_to_save(submission: Submission) -> None:
    text = scripts(replace(submission, minutes=10), Background(nice=5))[SCRIPT]
    assert "exec nice -n 5 timeout --signal=TERM --kill-after=30 570 echo started run" in text


@pytest.mark.parametrize(
    ("changed", "option"), [({"nodes": 2}, "--nodes"), ({"array": 3}, "--array"), ({"precompile": True}, "--precompile")]
)
def test_what_it_cannot_do(submission: Submission, changed: dict[str, int], option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option}: "):
        scripts(replace(submission, **changed), Background())  # type: ignore[arg-type]


def test_a_job_runs_until_it_is_stopped(submission: Submission, tmp_path: Path) -> None:
    waiting = (sys.executable, "-c", "import signal; signal.pause()")
    (tmp_path / SCRIPT).write_text(scripts(replace(submission, program=waiting), Background())[SCRIPT])
    job = submit(tmp_path, [SCRIPT])
    assert state(job) == "running"
    stop(job, "running")
    assert os.waitstatus_to_exitcode(os.waitpid(int(job), 0)[1]) == -signal.SIGTERM
    assert state(job) == "ended"
    stop(job, "running")
