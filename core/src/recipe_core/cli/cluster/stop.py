"""The command ``recipe stop``."""

from __future__ import annotations

import os
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.cli.cluster.status import run_folder, runs_in
from recipe_core.cli.options import debug_option, load_plugins
from recipe_core.errors import DiskError, LaunchError

if TYPE_CHECKING:
    from recipe_core.cli.cluster.run_status import RunStatus
    from recipe_core.hooks.registry import Registry
    from recipe_core.launch.process import Process


@click.command()
@run_folder
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the end; 0 does not wait.",
)
@debug_option
def stop(out: Path, wait: float) -> None:
    """Ask a run to save and stop, and wait for its end.

    A job of Slurm that waits is cancelled; one that runs is not started again.
    """
    plugins = load_plugins()
    deadline = time.monotonic() + wait
    for folder in runs_in(out):
        click.echo(_stop(plugins, folder, deadline, wait > 0))


def _stop(registry: Registry, out: Path, deadline: float, wait: bool) -> str:
    """Stop one run; return a message.

    Raises:
        LaunchError: this machine cannot reach the run, or it has not ended in time.
    """
    from recipe_core.cli.cluster.run_status import ACTIVE, run_status, wait_for_end

    status = run_status(registry, out)
    if status.state not in (*ACTIVE, "unknown"):
        return f"{out} does not run: it is {status.state}{': ' if status.detail else ''}{status.detail}"
    if status.job is not None and status.job_state in ("waiting", "running"):
        _stop_job(registry, out, status)
    elif status.process is not None and status.process.is_alive():
        _signal(status.process)
        if wait and status.process.launcher == "torchrun":
            _end_agent(status.process, deadline)
    else:
        host = status.process.host if status.process else "another machine"
        raise LaunchError(
            f"{out}: {status.detail}; there: recipe stop {shlex.quote(str(out.absolute()))} (as in ssh {host} ...)"
        )
    if not wait:
        return f"{out}: asked to stop"
    ended = wait_for_end(registry, out, max(0.0, deadline - time.monotonic()))
    if ended.state in ACTIVE:
        raise LaunchError(
            f"{out}: asked to stop, and {ended.detail} has not ended in time; it ends when its step and its checkpoint "
            "are done: `recipe status` tells, --wait SECONDS waits longer"
        )
    return f"{out}: {ended.state}{': ' if ended.detail else ''}{ended.detail}"


def _stop_job(registry: Registry, out: Path, status: RunStatus) -> None:
    """Stop the job through the batch system; the file stop-ID keeps the job's script from restarting it."""
    from recipe_core.files import write_text
    from recipe_core.hooks.target import call

    job = status.job
    assert job is not None
    launcher = registry.get("launcher", job.launcher)
    try:
        (out / "launch").mkdir(exist_ok=True)
        write_text(out / "launch" / f"stop-{job.job_id}", "")
    except OSError as error:
        raise DiskError(f"{out}: cannot be written ({error.strerror}); the job would be started again") from error
    call(launcher.stop, f"launcher {launcher.name!r}", job.job_id, status.job_state)


def _signal(process: Process) -> None:
    """Signal the ranks of this machine to stop: our supervisor forwards the signal; without one, rank 0 does."""
    supervised = process.launcher == "recipe" and process.parent_is_alive()
    with suppress(ProcessLookupError):
        os.kill(process.parent if supervised else process.pid, signal.SIGTERM)


def _end_agent(process: Process, deadline: float) -> None:
    """Wait for the rank, then end torchrun, which may restart the ranks (--max-restarts)."""
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(20):
        if process.is_alive() or not process.parent_is_alive():
            return
        time.sleep(0.1)
    with suppress(ProcessLookupError):
        os.kill(process.parent, signal.SIGTERM)
