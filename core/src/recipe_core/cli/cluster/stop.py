"""The command ``recipe stop``."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.cluster.status import run_folder, runs_in
from recipe_core.errors import DiskError, LaunchError

if TYPE_CHECKING:
    from recipe_core.cli.cluster.standing import Standing
    from recipe_core.hooks.registry import Registry
    from recipe_core.launch.process import Process


def add_stop_command(group: click.Group, debug: Callable[[Any], Any], registry: Callable[[], Registry]) -> None:
    """Add the command to ``group``; ``debug`` decorates it."""

    @group.command()
    @run_folder
    @click.option(
        "--wait",
        type=click.FloatRange(min=0),
        default=600,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for the end; 0 does not wait.",
    )
    @debug
    def stop(out: Path, wait: float) -> None:
        """Ask a run to save and stop, and wait for its end.

        A job of Slurm that waits is cancelled; one that runs is not started again.
        """
        plugins = registry()
        deadline = time.monotonic() + wait
        for folder in runs_in(out):
            click.echo(_stop(plugins, folder, deadline, wait > 0))


def _stop(registry: Registry, out: Path, deadline: float, wait: bool) -> str:
    """Stop one run; return what happened.

    Raises:
        LaunchError: it runs where this machine cannot reach it, or has not ended in time.
    """
    from recipe_core.cli.cluster.standing import ACTIVE, standing, wait_until

    now = standing(registry, out)
    if now.state not in (*ACTIVE, "unknown"):
        return f"{out} does not run: it is {now.state}{': ' if now.detail else ''}{now.detail}"
    if now.job is not None and now.job_state in ("waiting", "running"):
        _stop_job(registry, out, now)
    elif now.process is not None and now.process.is_alive():
        _signal(now.process)
        if wait and now.process.launcher == "torchrun":
            _end_agent(now.process, deadline)
    else:
        host = now.process.host if now.process else "another machine"
        raise LaunchError(
            f"{out}: {now.detail}; there: recipe stop {shlex.quote(str(out.absolute()))} (as in ssh {host} ...)"
        )
    if not wait:
        return f"{out}: asked to stop"
    ended = wait_until(registry, out, max(0.0, deadline - time.monotonic()))
    if ended.state in ACTIVE:
        raise LaunchError(
            f"{out}: asked to stop, and {ended.detail} has not ended in time; it ends when its step and its checkpoint "
            "are done: `recipe status` tells, --wait SECONDS waits longer"
        )
    return f"{out}: {ended.state}{': ' if ended.detail else ''}{ended.detail}"


def _stop_job(registry: Registry, out: Path, now: Standing) -> None:
    """Have the batch system stop the job, after a note for the job's script not to start it again."""
    from recipe_core.files import write_text
    from recipe_core.hooks.specs import load

    job = now.job
    assert job is not None
    launcher = registry.get("launcher", job.launcher)
    try:
        (out / "launch").mkdir(exist_ok=True)
        write_text(out / "launch" / f"stop-{job.job_id}", "")
    except OSError as error:
        raise DiskError(f"{out}: cannot be written ({error.strerror}); the job would be started again") from error
    load(launcher.stop, f"launcher {launcher.name!r}")(job.job_id, now.job_state)


def _signal(process: Process) -> None:
    """Ask the ranks of this machine to stop: our supervisor passes the signal on; else rank 0 tells the others."""
    supervised = process.launcher == "recipe" and process.parent_is_alive()
    with suppress(ProcessLookupError):
        os.kill(process.parent if supervised else process.pid, signal.SIGTERM)


def _end_agent(process: Process, deadline: float) -> None:
    """Wait for the rank, then end torchrun where it would start the ranks again (--max-restarts)."""
    while process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    for _ in range(20):
        if process.is_alive() or not process.parent_is_alive():
            return
        time.sleep(0.1)
    with suppress(ProcessLookupError):
        os.kill(process.parent, signal.SIGTERM)
