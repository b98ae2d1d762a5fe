"""The command ``recipe status``."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.options import StartedPath, debug_option, json_option, load_plugins
from recipe_core.errors import ConfigError

if TYPE_CHECKING:
    from recipe_core.hooks.registry import Registry
    from recipe_core.launch.ending import Ending

_COLOURS = {"running": "green", "finished": "green", "failed": "red", "killed": "red"}
run_folder = click.argument("out", type=StartedPath(), metavar="RUN")


@click.command()
@run_folder
@json_option
@click.option("--step", "only_step", is_flag=True, help="Print the step of the newest checkpoint, 0 without one.")
@click.option(
    "--again", is_flag=True, help="Say why the last start ended; exit with 0 if the same line may go on, else 1."
)
@click.option("--since", type=float, metavar="TIME", help="With --again: of a start from then on, in Unix time.")
@click.option("--code", type=int, metavar="N", help="With --again: its exit code, where nobody said more.")
@debug_option
def status(out: Path, as_json: bool, only_step: bool, again: bool, since: float | None, code: int | None) -> int | None:
    """Tell how a run stands.

    It waits, runs, or has ended, and how; step, losses, time left, host and job. RUN is a run folder, or that of
    several runs of `recipe submit --array`.
    """
    if only_step:
        click.echo(saved_step(out))
        return None
    if again:
        ending = _ending(out, since, code)
        click.echo(ending.line())
        return 0 if ending.again else 1
    plugins = load_plugins()
    folders = runs_in(out)
    facts = [_facts(plugins, folder) for folder in folders]
    if as_json:
        click.echo(json.dumps(facts[0] if folders == [out] else facts, indent=2))
    else:
        click.echo("\n\n".join("\n".join(_lines(fact)) for fact in facts))
    return None


def _ending(out: Path, since: float | None, code: int | None) -> Ending:
    """Why the last start of a run ended.

    Raises:
        ConfigError: it is not a run folder, or the ending is not known.
    """
    from recipe_core.cli.cluster.run_status import final_state
    from recipe_core.launch.ending import Ending, kind_of, read_ending
    from recipe_core.launch.process import read_process

    saved_step(out)
    process = read_process(out)
    if since is None:
        since = process.began if process else 0.0
    ending = read_ending(out, since)
    if ending is not None and ending.kind != "stopped":  # the process knows which signal stopped it
        return ending
    if process is not None and process.began >= since:
        state, exit_code, detail = final_state(out, process, None)
        if exit_code is not None:
            return Ending(kind=kind_of(exit_code), exit_code=exit_code, message=detail or state)
    if ending is not None:
        return ending
    if code is None:
        raise ConfigError(f"{out}: no process has said why it ended; --code tells the exit code of the last start")
    return Ending(kind=kind_of(code), exit_code=code, message=f"ended with exit code {code}, and without a word")


def runs_in(out: Path) -> list[Path]:
    """Return ``out`` if it is a run folder, else the run folders of the array in it.

    Raises:
        ConfigError: it is neither.
    """
    if (out / "job.yaml").is_file():
        return [out]
    seeds = [path for path in out.glob("seed-*") if (path / "job.yaml").is_file()]
    if not seeds:
        problem = "there is no job.yaml in it" if out.is_dir() else "there is no such folder"
        raise ConfigError(f"{out}: expected a run folder, and {problem}")
    return sorted(seeds, key=lambda path: (len(path.name), path.name))


def saved_step(out: Path) -> int:
    """Return the step of the newest checkpoint of a run folder; 0 without a checkpoint.

    Raises:
        ConfigError: ``out`` is not a run folder.
    """
    from recipe_core.checkpoint.locate import steps
    from recipe_core.checkpoint.manifest import step_of

    if not (out / "job.yaml").is_file():
        raise ConfigError(f"{out}: expected a run folder, and there is no job.yaml in it")
    saved = steps(out)
    return step_of(saved[-1].name) if saved else 0


def _facts(registry: Registry, out: Path) -> dict[str, Any]:
    from recipe_core.cli.cluster.limits import median_step
    from recipe_core.cli.cluster.run_status import run_status
    from recipe_core.train.metrics.curves import METRICS, read_lines

    status, rows = run_status(registry, out), read_lines(out / METRICS).rows
    step, steps, each = max((row["step"] for row in rows), default=0), _steps(out), median_step(rows)
    unfinished = steps and step < steps and status.state != "finished"  # a callback may end a run early
    left = (steps - step) * each if steps and each and unfinished else None
    losses = [{key: row[key] for key in ("step", "loss", "val_loss") if key in row} for row in rows]
    return {
        "run": str(out), "state": status.state, "detail": status.detail, "exit_code": status.exit_code,
        "step": step, "steps": steps, "saved_step": saved_step(out), "seconds_per_step": each, "seconds_left": left,
        "last": [row for row in losses if len(row) > 1][-3:],
        "process": asdict(status.process) if status.process else None,
        "job": asdict(status.job) | {"state": status.job_state} if status.job else None,
        "ending": asdict(status.ending) | {"again": status.ending.again} if status.ending else None,
        "updated": (out / METRICS).stat().st_mtime if rows else None,
    }  # fmt: skip


def _steps(out: Path) -> int | None:
    from recipe_core.files.documents import read_yaml

    try:
        steps = read_yaml(out / "job.yaml")["train"]["steps"]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    return steps if isinstance(steps, int) else None


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    state = click.style(facts["state"], fg=_COLOURS.get(facts["state"]), bold=True)
    code = f" (exit code {facts['exit_code']})" if facts["exit_code"] is not None else ""
    yield f"{facts['run']}: {state}{code}{': ' if facts['detail'] else ''}{facts['detail']}"
    of = f" of {facts['steps']:,}" if facts["steps"] else ""
    yield f"  step       {facts['step']:,}{of}; saved: {facts['saved_step']:,}"
    if facts["seconds_left"] is not None:
        yield f"  time left  {_duration(facts['seconds_left'])} at {facts['seconds_per_step']:.3g} s a step"
    for row in facts["last"]:
        values = ", ".join(f"{key} {_number(row[key])}" for key in ("loss", "val_loss") if key in row)
        yield f"  at {row['step']:<7,} {values}"
    if facts["updated"] is not None:
        yield f"  last row   {_duration(max(0.0, time.time() - facts['updated']))} ago"
    if process := facts["process"]:
        by = f", started by {process['launcher']}" if process["launcher"] else ""
        ranks = f"{process['world_size']} process{'es' if process['world_size'] > 1 else ''}"
        yield f"  process    {process['pid']} on {process['host']}, {ranks}{by}"
    if job := facts["job"]:
        yield f"  job        {job['job_id']} of {job['launcher']}: {job['state']}"
    if facts["state"] in ("stopped", "killed") or (facts["ending"] or {}).get("again"):
        yield f"  go on with recipe run {shlex.quote(facts['run'])}/job.yaml --out {shlex.quote(facts['run'])}"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _duration(seconds: float) -> str:
    """``3 d 4 h``, ``2 h 5 min``, ``3 min 10 s``, ``12 s``."""
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
