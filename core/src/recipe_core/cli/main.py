"""The command ``recipe``. Each command imports what it needs when it is called: most need no torch."""

from __future__ import annotations

import atexit
import codecs
import contextlib
import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from recipe_core.cli.arguments import RecipeCommand, recipe_arguments, run_folder, split
from recipe_core.cli.checkpoint.convert import convert, merge
from recipe_core.cli.checkpoint.evaluate import evaluate
from recipe_core.cli.checkpoint.generate import generate
from recipe_core.cli.cluster.logs import logs
from recipe_core.cli.cluster.status import status
from recipe_core.cli.cluster.stop import stop
from recipe_core.cli.cluster.submit import submit
from recipe_core.cli.commands.check import check
from recipe_core.cli.commands.describe import ALL, describe_job, summary_of
from recipe_core.cli.commands.doctor import doctor
from recipe_core.cli.commands.group import RecipeGroup
from recipe_core.cli.commands.stored import require_possible, run_place
from recipe_core.cli.compare.command import compare
from recipe_core.cli.compare.report.command import report
from recipe_core.cli.data.files import inspect, verify
from recipe_core.cli.data.prepare import prepare
from recipe_core.cli.options import Invocation, LocalPath, debug_option, load_plugins, processes_option, run_out_option
from recipe_core.cli.plugin.command import add_plugin_command
from recipe_core.errors import ExitCode, LaunchError, PluginError, RecipeError
from recipe_core.launch.cores import NO_SPINNING, OthersAtStart, limit_spinning
from recipe_core.launch.notice import notice

if TYPE_CHECKING:
    from recipe_core.launch.worker import Worker
    from recipe_core.settings.job import Job

COMPLETE = "_RECIPE_COMPLETE"
"""Environment variable through which a shell asks for completions."""
_USERS_ENVIRONMENT = ("check", "doctor", "submit")
"""Commands that do not compute, and show or pass on the environment as the user set it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its :class:`recipe_core.errors.ExitCode`; 130 for Ctrl-C."""
    gc.set_threshold(50_000)  # a tenth of a short command's time goes into the garbage collector at Python's 700
    atexit.register(gc.freeze)  # and another tenth into a collection at exit
    _escape_unprintable()
    line = Invocation()
    if COMPLETE in os.environ:
        import recipe_core.cli.completion  # noqa: F401  (it registers our script for bash with click)
    try:
        with _record_interrupts(line):
            code = cli.main(args=argv, prog_name="recipe", complete_var=COMPLETE, standalone_mode=False, obj=line)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):  # click raises Abort for KeyboardInterrupt
        return _fail(KeyboardInterrupt("interrupted"), line)
    except BaseException as error:
        return _fail(KeyboardInterrupt("interrupted") if line.interrupted else error, line)
    return code if isinstance(code, int) else 0


def _escape_unprintable() -> None:
    """Print characters that the terminal's encoding lacks as escapes; by default they raise an error."""

    def escaped(error: UnicodeError) -> tuple[str | bytes, int]:
        try:
            return codecs.lookup_error("surrogateescape")(error)  # a file name that is not text is printed as its bytes
        except UnicodeError:
            return codecs.lookup_error("backslashreplace")(error)

    codecs.register_error("recipe.escape", escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):  # a stream that was redirected after Python opened it
                stream.reconfigure(errors="recipe.escape")


@contextlib.contextmanager
def _record_interrupts(line: Invocation) -> Iterator[None]:
    """Record Ctrl-C in ``line``, in place of Python's handler; ``recipe run`` has a handler that stops the run."""
    replace = (
        threading.current_thread() is threading.main_thread()  # other threads cannot set a handler
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )

    def interrupt(number: int, frame: FrameType | None) -> None:
        line.interrupted = True
        raise KeyboardInterrupt

    if replace:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if replace and signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _fail(error: BaseException, line: Invocation) -> int:
    """Print the error, or record it for this rank's supervisor; return the exit code."""
    from recipe_core.launch.failures import exit_code, explain, record_failure

    if (known := explain(error)) is not None:  # a lost peer or a full disk
        known.__cause__ = error
        error = known
    expected = isinstance(error, (RecipeError, KeyboardInterrupt))
    with contextlib.suppress(OSError):  # the disk of the log may be full; the exit code remains
        if line.debug and expected:
            traceback.print_exception(error)
        if not record_failure(error):
            if expected:
                click.echo(f"{line.command}: {error}", err=True)
            elif not isinstance(error, SystemExit):
                traceback.print_exception(error)
    return exit_code(error)


@click.group(cls=RecipeGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(None, "-v", "-V", "--version", package_name="recipe-core", prog_name="recipe")
@debug_option
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train models by recipes: each composes a model, a dataset, a parallel layout and a checkpoint format."""
    if ctx.invoked_subcommand not in _USERS_ENVIRONMENT and limit_spinning(os.environ):  # child processes inherit it
        ctx.ensure_object(Invocation).others = OthersAtStart()


@cli.command("ls")
@debug_option
def ls() -> int:
    """List recipes, and the parts that they can be composed of."""
    from recipe_core.cli.show import listing
    from recipe_core.hooks.registry import distributions

    registry = load_plugins()
    click.echo(listing(registry, distributions()))
    for note in (*registry.conflicts(), *registry.shadowed()):
        click.echo(f"recipe: {note}", err=True)
    return ExitCode.FINDING if registry.broken or registry.conflicts() else ExitCode.FINISHED


@cli.command(cls=RecipeCommand)
@recipe_arguments
@click.option(
    "--describe",
    is_flag=False,
    flag_value=ALL,
    metavar="[SECTION]",
    help="Explain the settings instead: all, or those of a section (train), or one (train.lr).",
)
@debug_option
def show(arguments: tuple[str, ...], describe: str | None) -> None:
    """Print the settings of a recipe.

    They are printed as YAML, which `recipe run FILE` takes back.
    """
    if describe is None:
        click.echo(_job(arguments).as_yaml(), nl=False)
    else:
        # click took the name for the option's value
        arguments, describe = (arguments, describe) if arguments else ((describe,), ALL)
        click.echo(describe_job(load_plugins(), _job(arguments), describe))


cli.add_command(check)


@cli.command(cls=RecipeCommand)
@recipe_arguments
@processes_option
@run_out_option
@debug_option
@click.pass_context
def run(ctx: click.Context, arguments: tuple[str, ...], processes: int | None, out: Path | str | None) -> int:
    """Train.

    The folder of an earlier run, instead of a name, continues that run, and so does --out with the line that started
    it. The same command is one rank of a run where torchrun or srun starts it.
    """
    from recipe_core.launch import worker as launch

    launch.die_with_parent()
    worker = launch.worker()
    with run_place(arguments, out, worker) as (named, folder):
        return _run(ctx, named, processes, folder, worker)


def _run(
    ctx: click.Context, arguments: tuple[str, ...], processes: int | None, out: Path | None, worker: Worker | None
) -> int:
    """Train, as this process or as the parent of several."""
    from recipe_core.engine.machine import environment
    from recipe_core.launch import worker as launch
    from recipe_core.settings.remarks import remarks_of
    from recipe_core.train.start.destination import RUNS, begun, new_folder, require_run_folder, shared_folder

    try:
        launch.refuse_processes(worker, processes)
        arguments, named_folder = run_folder(arguments)
        out = out or named_folder
        job = _job(arguments, worker.world_size if worker else processes or 0, out or RUNS)
        require_possible(job, out)
        folder = out or (shared_folder(job.name, worker) if worker else None)
    except Exception as error:
        # All ranks of a machine see a mistake; local rank 0 reports it. Our supervisor reports it once by itself.
        if worker is not None and worker.launcher != "recipe":
            if out is not None:  # ranks of other machines may not see it, and wait
                _report_to_peers(worker, out, error)
            if isinstance(error, RecipeError) and worker.local_rank > 0:
                return ExitCode.MISTAKE
        raise
    if worker is None:
        processes = processes or _default_processes(job)
    first = worker is None or (worker.rank == 0 and worker.launcher != "recipe")  # our supervisor has checked already
    if folder is not None and first and not begun(folder):
        require_run_folder(folder)  # before the ranks' logs are written into it
    if folder is not None:
        launch.keep_log(worker, folder / "logs")
    processes = processes or job.processes
    if worker is not None and worker.world_size > 1:
        ctx.ensure_object(Invocation).command += f" (rank {worker.rank})"
    environment.prepare(job, processes)  # before a library reads the variables
    others = ctx.ensure_object(Invocation).others
    alone = worker is None and "torch" not in sys.modules  # the ranks of a launcher start together
    if alone and others is not None and others.use_cores():
        os.environ.update(NO_SPINNING)
    if first:
        for remark in remarks_of(job):
            click.echo(f"recipe: note: {remark}", err=True)
    if folder is not None:
        return _start(ctx, job, arguments, folder, processes if worker is None else 1)
    folder = new_folder(job.name)
    try:
        return _start(ctx, job, arguments, folder, processes)
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # succeeds only if the run failed before it wrote anything


def _report_to_peers(worker: Worker, out: Path, error: Exception) -> None:
    """Record the error in the run folder, so that the ranks of other machines stop waiting for this one."""
    from recipe_core.launch.failures import exit_code, first_line, message_of
    from recipe_core.launch.watch.heartbeat_files import write_early_failure
    from recipe_core.train.start.destination import require_run_folder

    with contextlib.suppress(RecipeError):
        require_run_folder(out)
        line = first_line(message_of(error))
        write_early_failure(out / "logs", worker.rank, worker.world_size, exit_code(error), line)


def _settings_summary(arguments: Sequence[str]) -> str:
    return summary_of(_job(arguments)) if any("=" not in word for word in arguments) else ""


run.details = _settings_summary  # type: ignore[attr-defined]


@cli.command(cls=RecipeCommand)
@recipe_arguments
@processes_option
@click.option(
    "--out",
    type=LocalPath(),
    metavar="DIR",
    help="Where a dry run keeps what it needs (default: a temporary folder); one that all machines see.",
)
@debug_option
def precompile(arguments: tuple[str, ...], processes: int | None, out: Path | None) -> int:
    """Compile the graphs of a run before it.

    It takes the line of the run, its processes included, and makes two steps without checkpoints, logs and golden
    curve. On AWS Neuron over XLA it does so under neuron_parallel_compile.
    """
    from recipe_core.cli import precompile as cli_precompile
    from recipe_core.engine.machine import environment
    from recipe_core.launch import worker as launch
    from recipe_core.train.start.destination import shared_folder

    launch.die_with_parent()
    worker = launch.worker()
    launch.refuse_processes(worker, processes)
    job = _job(cli_precompile.dry_run_arguments(arguments), worker.world_size if worker else processes or 0)
    count = processes or (_default_processes(job) if worker is None else job.processes)
    environment.prepare(job, worker.world_size if worker else count)
    folder = out or (shared_folder(job.name, worker) if worker else None)
    return cli_precompile.precompile(job, arguments, folder, 1 if worker else count)


def _default_processes(job: Job) -> int:
    """Return the number of processes of the recipe, if this machine has room for them.

    Raises:
        LaunchError: this machine has too few devices.
    """
    from recipe_core.engine.select import places
    from recipe_core.train.start.check import machine

    count = job.processes
    if count <= job.recipe.processes:
        return count
    slots = places(job.train.device, job.engine.spec.name) or machine.device_slots(job.train.device)
    if slots is not None and slots[0] < count:
        raise LaunchError(
            f"{job.name} is made for {count} processes, and this machine has {slots[0]} {slots[1]}; start it on as "
            "many machines as it takes, by torchrun or srun, or say how many processes to start here: --processes N"
        )
    return count


def _job(arguments: Sequence[str], world_size: int | None = None, out: Path | None = None) -> Job:
    """The job of a command line; with a world size, all checks that are possible before a run are made."""
    target, overrides = split(arguments)
    if world_size is None:
        from recipe_core.settings.job import resolve

        return resolve(load_plugins(), target, overrides)
    from recipe_core.train.start.check import checked_job

    return checked_job(load_plugins(), target, overrides, world_size, out)


def _start(ctx: click.Context, job: Job, arguments: Sequence[str], folder: Path, processes: int) -> int:
    """Train in this process, or supervise several ranks."""
    from recipe_core.engine.select import one_process
    from recipe_core.launch import worker as launch

    if processes > 1 and not one_process(job.engine, job.layout):
        debug = ["--debug"] if ctx.ensure_object(Invocation).debug else []
        command = [sys.executable, "-m", "recipe_core.cli", *debug, "run", *arguments, "--out", str(folder)]
        return launch.supervise(command, processes, folder / "logs")
    if "torch" not in sys.modules:
        notice("importing PyTorch")
    return _train(job, folder)


def _train(job: Job, folder: Path) -> int:
    """Train by the core's loop, or by the recipe's own, whose errors name the recipe."""
    from recipe_core.hooks.specs import CORE_LOOP
    from recipe_core.hooks.target import as_plugin_error, load
    from recipe_core.launch.failures import is_of_machine

    owner, core = f"recipe {job.recipe.name!r}", job.recipe.run == CORE_LOOP
    function = load(job.recipe.run, owner)
    code = f"{owner}: {job.recipe.run!r}"
    with as_plugin_error(code, passes=lambda error: core or is_of_machine(error)):
        results = function(job, folder)
    if not isinstance(results, Mapping | None):
        raise PluginError(f"{code} returned {results!r:.60}; expected a dict of results, or None")
    return int((results or {}).get("exit_code", ExitCode.FINISHED))


for _command in (
    submit, status, logs, stop, compare, report, prepare, inspect, verify, generate, evaluate, convert, merge, doctor,
):  # fmt: skip
    cli.add_command(_command)
add_plugin_command(cli, debug_option, load_plugins)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  eval "$(recipe completion bash)"          in ~/.bashrc
    zsh:   eval "$(recipe completion zsh)"           in ~/.zshrc
    fish:  recipe completion fish | source           in ~/.config/fish/config.fish
    """
    from recipe_core.cli.completion import script

    click.echo(script(cli, shell, COMPLETE))
