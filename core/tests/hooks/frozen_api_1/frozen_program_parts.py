"""The code behind frozen_program.py. Never edit this file: later cores must run it as it is."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from frozen_program import Tray

from recipe_core import ConfigError, RecipeCommand, Submission, job_of, recipe_arguments


def scripts(submission: Submission, config: Tray) -> Mapping[str, str]:
    if submission.nodes > 2:
        raise ConfigError(f"--nodes: a tray holds two, got {submission.nodes}")
    call = [*(submission.program or ("recipe",)), "run", str(submission.out / "job.yaml")]
    lines = [
        f"# {submission.name}: {submission.nodes} x {submission.processes_per_node} in {config.queue}",
        f"# {submission.minutes} {submission.stop_seconds} {submission.exit_seconds} {submission.array}",
        *(f"export {name}={shlex.quote(value)}" for name, value in submission.environment.items()),
        f"cd {shlex.quote(str(submission.folder))}",
        shlex.join(call),
    ]
    return {"tray.sh": "\n".join(lines) + "\n", "second.txt": str(submission.launch_folder)}


def submit(folder: Path, files: Sequence[str]) -> str:
    (folder / "job-7").write_text(",".join(files), encoding="utf-8")
    return "7"


def state(job_id: str) -> str:
    if job_id != "7":
        return "unknown"
    return "ended" if Path("stopped-7").exists() else "waiting"


def stop(job_id: str, state: str) -> None:
    Path(f"stopped-{job_id}").write_text(state, encoding="utf-8")


@click.command(cls=RecipeCommand)
@recipe_arguments
@click.option("--times", type=int, default=1, help="Factor.")
def steps(arguments: tuple[str, ...], times: int) -> None:
    """Print the steps of a recipe."""
    click.echo(job_of(arguments).train.steps * times)


@click.group()
def many() -> None:
    """Has commands of its own."""


@many.command()
def fails() -> int:
    """Fail in a way that a script can see."""
    return 4


@many.command()
def refuses() -> None:
    """Refuse in one sentence."""
    raise ConfigError("frozen: expected something else")
