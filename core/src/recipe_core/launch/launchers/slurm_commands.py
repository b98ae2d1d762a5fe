"""Slurm's commands to submit, query and stop a job."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from recipe_core.errors import LaunchError
from recipe_core.hooks.specs.launcher import JobState
from recipe_core.launch.launchers.slurm import PRECOMPILE, SCRIPT

_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "CONFIGURING"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}


def submit(folder: Path, files: Sequence[str]) -> str:
    """Submit the scripts in ``folder``, the compilation first if there is one; return the id of the run's job.

    Raises:
        LaunchError: sbatch is missing, or refuses the script.
    """
    after: list[str] = []
    if PRECOMPILE in files:
        first = _submit(folder / PRECOMPILE)
        after = [f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes"]
    return _submit(folder / SCRIPT, *after)


def _submit(script: Path, *options: str) -> str:
    printed = run_slurm(["sbatch", "--parsable", *options, str(script)], f"submit it there: sbatch {script}")
    return printed.strip().partition(";")[0]  # id;cluster


def state(job_id: str) -> JobState:
    """Return the state of a job; for an array, that of its furthest task."""
    try:
        printed = run_slurm(["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job_id}"], "")
    except LaunchError as error:
        return "ended" if "Invalid job id" in str(error) else "unknown"
    states = set(printed.split())
    if states & _RUNNING:
        return "running"
    return "waiting" if states & _WAITING else "ended"


def stop(job_id: str, state: JobState) -> None:
    """Ask the ranks of a job to save and stop; cancel one that has not begun.

    Raises:
        LaunchError: scancel is missing, or refuses.
    """
    signal = [] if state == "waiting" else ["--signal=USR1"]  # without --batch: to the ranks, not to the script
    run_slurm(["scancel", *signal, job_id], f"on a machine of the cluster: scancel {' '.join([*signal, job_id])}")


def run_slurm(command: Sequence[str], remedy: str, text: str | None = None) -> str:
    """Run a command of Slurm with ``text`` as its input; return its output.

    Raises:
        LaunchError: it is missing (``remedy`` says what to do), fails, or does not answer within a minute.
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]} is not on the path: this machine is no login node of a Slurm cluster; {remedy}"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{command[0]}: does not answer ({error}); {remedy}") from error
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())
        raise LaunchError(f"{command[0]} failed with exit code {done.returncode}: {words}")
    return done.stdout
