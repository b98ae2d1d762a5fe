"""The launcher: scripts, and what `recipe submit`, `status` and `stop` do with a job. No torch here."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from recipe_core import ConfigError, Submission

from recipe_new_plugin.plugin import Background

SCRIPT = "run.sh"


def scripts(submission: Submission, config: Background) -> Mapping[str, str]:
    """Return the files to write into ``submission.launch_folder``; the first is submitted.

    Raises:
        ConfigError: the launcher cannot do what was asked.
    """
    if submission.nodes > 1:
        raise ConfigError(f"--nodes: this launcher starts runs on this machine alone, and not on {submission.nodes}")
    if submission.array or submission.precompile:
        option = "--array" if submission.array else "--precompile"
        raise ConfigError(f"{option}: this launcher cannot do that; leave it out")
    program = [*(submission.program or ("recipe",)), "run", str(submission.out / "job.yaml")]
    command = [*program, "--processes", str(submission.processes_per_node), "--out", str(submission.out)]
    limit = []
    if submission.minutes:  # SIGTERM has a run save and stop
        seconds = submission.minutes * 60 - submission.stop_seconds
        limit = ["timeout", "--signal=TERM", f"--kill-after={submission.stop_seconds}", str(seconds)]
    lines = [
        "#!/bin/bash",
        submission.setup.rstrip(),
        *(
            f'[ "${{{name}+set}}" ] || export {name}={shlex.quote(value)}'
            for name, value in submission.environment.items()
        ),
        f"cd {shlex.quote(str(submission.folder))} || exit 2",
        # exec: the process of the job is then the run, which signals reach.
        f"exec nice -n {config.nice} {shlex.join([*limit, *command])}",
    ]
    return {SCRIPT: "\n".join(filter(None, lines)) + "\n"}


def submit(folder: Path, files: Sequence[str]) -> str:
    """Start the script, which is in ``folder``; return the id of the job."""
    with (folder / "output.txt").open("ab") as output:
        job = subprocess.Popen(
            ["bash", str(folder / files[0])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C and the end of the terminal do not reach it
        )
    return str(job.pid)


def state(job_id: str) -> str:
    """Return ``waiting``, ``running``, ``ended`` or ``unknown``."""
    answer = subprocess.run(["ps", "-o", "stat=", "-p", job_id], capture_output=True, text=True, check=False)
    running = answer.stdout.strip() and not answer.stdout.startswith("Z")
    return "running" if running else "ended"


def stop(job_id: str, state: str) -> None:
    """Ask a job to save and stop."""
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(int(job_id), signal.SIGTERM)
