"""The command ``recipe submit``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.arguments import RecipeCommand, recipe_arguments, split
from recipe_core.cli.cluster.limits import TimeLimit
from recipe_core.cli.commands.check import target_options
from recipe_core.cli.options import debug_option, load_plugins, out_option
from recipe_core.errors import ConfigError, PluginError
from recipe_core.files.named import split_weights

if TYPE_CHECKING:
    from recipe_core.cli.check.target import Target
    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs.launcher import Launcher, Submission
    from recipe_core.launch.launchers.site import Site
    from recipe_core.settings.job import Job


@click.command(cls=RecipeCommand)
@recipe_arguments
@click.option("--to", metavar="LAUNCHER", default="slurm", show_default=True, help="slurm, k8s, sky or a plugin's.")
@target_options
@click.option("--time", "minutes", type=TimeLimit(), help="Time limit: 90m, 4h, 2d, 4:00:00.")
@click.option(
    "--stop-before",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Save and stop so long before the limit (default: by an earlier run in the folder, else 300).",
)
@click.option("--array", type=click.IntRange(min=1), metavar="K", help="K runs with seeds of their own.")
@click.option(
    "--precompile/--no-precompile",
    default=None,
    help="Compile in a job before the run (default: where the engine compiles every shape).",
)
@click.option("--check-nodes", is_flag=True, help="Begin the job with `recipe check --on-nodes`.")
@click.option("--print", "only_print", is_flag=True, help="Print the script; write and submit nothing.")
@out_option
@debug_option
def submit(
    arguments: tuple[str, ...], to: str, site: Path | None, only_print: bool, out: Path | None, **line: Any
) -> None:
    """Start a run on other machines.

    The job is checked for these machines, frozen as job.yaml in the run folder, and given to Slurm as a script that
    starts it again when it was stopped before its end; or printed for kubectl (--to k8s) or sky (--to sky).
    """
    from recipe_core.cli.check.line import choose_target
    from recipe_core.cli.check.target import warnings
    from recipe_core.launch.launchers.site import read_profile

    plugins = load_plugins()
    launcher = plugins.get("launcher", to)
    if line["check_nodes"] and not launcher.checks_nodes:
        raise ConfigError(f"--check-nodes: --to {to} does not start one process on each node; leave it out")
    profile = read_profile(plugins, launcher, site)
    target = choose_target(
        plugins, arguments, profile, line["nodes"], line["processes_per_node"], line["device_memory"]
    )
    folder = out or _new_folder_name(plugins, arguments)
    checkable, notes = (arguments, []) if launcher.sees_files else _without_remote_files(plugins, arguments)
    job = _checked(plugins, checkable, folder, target, line["array"])
    submission = _submission(plugins, arguments, job, folder, target, profile.site, line)
    files = _scripts(launcher, submission, profile.config)
    for warning in warnings(job, target):
        click.echo(f"recipe: {warning}", err=True)
    for note in notes:
        click.echo(f"recipe: note: {note}", err=True)
    if only_print or not launcher.submit:
        if not only_print:
            click.echo(f"recipe: not submitted: --to {to} prints what its own command takes", err=True)
        click.echo("\n".join(files.values()), nl=False)
    else:
        click.echo(_submit(launcher, submission, files, _jobs(plugins, arguments, submission)))


def _new_folder_name(registry: Registry, arguments: tuple[str, ...]) -> Path:
    """A new folder name in runs/, which is not created yet."""
    from recipe_core.settings.job import resolve
    from recipe_core.train.start.destination import new_folder

    folder = new_folder(resolve(registry, *split(arguments)).name)
    folder.rmdir()  # created again after all checks
    return folder


def _checked(registry: Registry, arguments: tuple[str, ...], folder: Path, target: Target, array: int | None) -> Job:
    """The job, after all checks of its run folders.

    Raises:
        ConfigError: a run folder holds other files or another run, or its job waits or runs.
    """
    from recipe_core.cli.check.line import fully_checked_job
    from recipe_core.cli.cluster.run_status import busy_job
    from recipe_core.train.start.destination import require_run_folder

    if array:
        foreign = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        foreign = [name for name in foreign if name not in ("launch", "logs") and not re.fullmatch(r"seed-\d+", name)]
        if foreign or (folder.exists() and not folder.is_dir()):
            problem = f"holds {', '.join(sorted(foreign)[:3])}" if foreign else "is no folder"
            raise ConfigError(f"{folder} {problem}, and --array wants a folder for its runs alone; give another --out")
    for out in _folders(folder, array):
        require_run_folder(out)
    if busy := busy_job(registry, folder):
        raise ConfigError(f"{folder}: {busy}; `recipe stop {shlex.quote(str(folder))}` stops it, or give another --out")
    job = fully_checked_job(registry, arguments, target.world_size, _folders(folder, array)[0], target)
    for number, out in enumerate(_folders(folder, array)):
        if number and (out / "job.yaml").exists():
            fully_checked_job(
                registry, (*arguments, f"train.seed={job.train.seed + number}"), target.world_size, out, target
            )
    return job


def _without_remote_files(registry: Registry, arguments: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Reset the settings whose files are on other machines only; return the arguments, and a note for each setting."""
    from recipe_core.launch.identity import texts_of
    from recipe_core.settings.job import default_of, resolve

    job = resolve(registry, *split(arguments))
    local, notes = list(arguments), []
    for name, texts in texts_of(job.as_dict()):
        setting = name.partition("[")[0]  # whole: an entry of a list has no default
        if not setting.startswith(("data.", "train.", "model.")):
            continue
        if remote := [text for text in texts if _is_remote(text)]:
            local.append(f"{setting}={json.dumps(default_of(job, setting))}")
            notes.append(f"{name}: {remote[0]} is not on this machine; the job looks at it when it starts")
        elif present := [text for text in texts if _is_local(text)]:
            notes.append(f"{name}: {present[0]} is a path of this machine, and of the job's only if its image has it")
    return tuple(local), notes


def _is_remote(text: str) -> bool:
    from recipe_core.launch.identity import files_named, paths_in

    named = split_weights([text])[0]
    if named.address is not None:  # whose credentials may be the job's alone
        return True
    path = named.path
    return path.is_absolute() and not path.exists() and not files_named(paths_in([text]))


def _is_local(text: str) -> bool:
    return "/" in text and split_weights([text])[0].path.exists()


def _folders(folder: Path, array: int | None) -> list[Path]:
    return [folder / f"seed-{number}" for number in range(array)] if array else [folder]


def _submission(
    registry: Registry,
    arguments: tuple[str, ...],
    job: Job,
    folder: Path,
    target: Target,
    site: Site,
    line: dict[str, Any],
) -> Submission:
    from recipe_core.cli.cluster.limits import stop_seconds
    from recipe_core.engine.machine.environment import variables
    from recipe_core.hooks.specs.launcher import Submission
    from recipe_core.settings.job import resolve

    array, minutes = line["array"] or 0, line["minutes"] or 0
    stack = {v.name: v.value for v in variables(job, target.world_size, target.nodes > 1)}
    before = line["stop_before"] or stop_seconds(_folders(folder, array)[0], minutes)
    if minutes and before >= minutes * 60:
        raise ConfigError(f"--stop-before {before}: the run would stop at once, its limit is {minutes * 60} seconds")
    return Submission(
        name=re.sub(r"[^\w.-]+", "-", job.name, flags=re.ASCII).strip("-.") or "recipe",
        out=folder.absolute(),
        job=resolve(registry, *split(arguments)).as_yaml(),
        seed=job.train.seed,
        folder=Path.cwd(),
        program=tuple(shlex.split(site.program)),
        nodes=target.nodes,
        processes_per_node=target.processes_per_node,
        minutes=minutes,
        stop_seconds=before,
        exit_seconds=round(job.train.timeout) + 30,
        environment={**stack, **site.environment},
        setup=site.setup,
        array=array,
        precompile=_precompile(job, line["precompile"]),
        check_nodes=line["check_nodes"],
    )


def _precompile(job: Job, requested: bool | None) -> bool:
    from recipe_core.hooks.specs import Recipe

    own_loop = job.recipe.run != Recipe.run
    if requested and own_loop:
        raise ConfigError(f"--precompile: recipe {job.recipe.name!r} has a training loop of its own; leave it out")
    return requested if requested is not None else job.engine.spec.traced and not own_loop


def _jobs(registry: Registry, arguments: tuple[str, ...], submission: Submission) -> Iterator[tuple[Path, str]]:
    from recipe_core.settings.job import resolve

    target, overrides = split(arguments)
    for number, out in enumerate(_folders(submission.out, submission.array)):
        seed = [f"train.seed={submission.seed + number}"] if submission.array else []
        yield out, resolve(registry, target, [*overrides, *seed]).as_yaml()


def _scripts(launcher: Launcher, submission: Submission, config: object) -> Mapping[str, str]:
    """The files of the launcher.

    Raises:
        PluginError: it raises, or returns something else; a name may not lead out of the folder of the scripts.
    """
    from recipe_core.hooks.target import call

    owner = f"launcher {launcher.name!r}"
    files = call(launcher.build, owner, submission, config)
    head = f"{owner}: {launcher.build!r} returned"
    if not isinstance(files, Mapping) or not files:
        raise PluginError(f"{head} {files!r:.60}; expected {{file name: text}}, the one to submit first")
    for name, text in files.items():
        if not isinstance(name, str) or not name.strip(".") or re.search(r"[/\\\0]", name):
            raise PluginError(
                f"{head} the file name {name!r:.60}; expected a name without folders; nothing was written"
            )
        if not isinstance(text, str):
            raise PluginError(f"{head} {type(text).__name__} for the file {name!r}; expected its text")
    return files


def _submit(
    launcher: Launcher, submission: Submission, files: Mapping[str, str], jobs: Iterator[tuple[Path, str]]
) -> str:
    from recipe_core.errors import DiskError
    from recipe_core.files import write_text
    from recipe_core.hooks.target import call
    from recipe_core.launch.launchers.submitted import note

    folder = submission.launch_folder
    try:
        for directory in (folder, submission.out / "logs"):
            directory.mkdir(parents=True, exist_ok=True)
        for out, text in jobs:
            out.mkdir(exist_ok=True)
            write_text(out / "job.yaml", text)
        for name, text in files.items():
            write_text(folder / name, text)
    except OSError as error:
        raise DiskError(f"{submission.out}: cannot be written ({error.strerror}); give another --out") from error
    owner = f"launcher {launcher.name!r}"
    job_id = call(launcher.submit, owner, folder, list(files))
    if not isinstance(job_id, str) or not job_id:
        raise PluginError(f"{owner}: {launcher.submit!r} returned {job_id!r:.60}; expected the id of the job, a text")
    note(folder, launcher.name, job_id)
    shape = f"{submission.nodes} node{'s' if submission.nodes > 1 else ''} x {submission.processes_per_node}"
    seeds = f", {submission.array} runs" if submission.array else ""
    run = shlex.quote(str(submission.out))
    return (
        f"job {job_id}: {submission.name}, {shape} processes, {submission.minutes} minutes{seeds}\n"
        f"  script  {folder / next(iter(files))}\n"
        f"  recipe status {run}\n  recipe logs -f {run}\n  recipe stop {run}"
    )
