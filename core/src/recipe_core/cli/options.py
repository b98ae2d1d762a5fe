"""Options and paths that several commands share, and the plugins of the command that runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recipe_core.errors import ConfigError
from recipe_core.files import require_local
from recipe_core.files.objects import ObjectPath, is_address

if TYPE_CHECKING:
    from recipe_core.hooks.registry import Registry
    from recipe_core.launch.cores import OthersAtStart

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass
class Invocation:
    """The command that runs, as far as its error message needs it."""

    command: str = "recipe"
    debug: bool = False
    registry: Registry | None = None
    """The plugins, once they are loaded."""
    interrupted: bool = False
    """Ctrl-C was pressed. Libraries in C swallow its exception, and fail later with another error."""
    others: OthersAtStart | None = None
    """Tells whether waiting threads may spin; None where the user decided about it."""


def load_plugins() -> Registry:
    """Return the installed plugins, loaded once for each command; print complaints about broken ones."""
    from recipe_core.hooks.registry import load

    context = click.get_current_context(silent=True)
    line = context.ensure_object(Invocation) if context is not None else Invocation()
    if line.registry is None:
        line.registry = load()
        if os.environ.get("RANK", "0") == "0":  # every rank would print the same
            for complaint in line.registry.complaints():
                click.echo(f"recipe: {complaint}", err=True)
    return line.registry


class LocalPath(click.Path):
    """A path on this machine, as a ``pathlib.Path``; remote addresses are refused."""

    def __init__(self, *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse remote addresses before ``pathlib`` turns ``s3://bucket`` into ``s3:/bucket``."""
        require_local(os.fspath(value), self._name(param))
        return super().convert(value, param, ctx)

    def _name(self, param: click.Parameter | None) -> str:
        if param is None:
            return self.name
        return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


class DataPath(LocalPath):
    """A path on this machine, or an address of object storage (an ObjectPath)."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Tell the two apart."""
        return (
            ObjectPath.parse(os.fspath(value)) if is_address(os.fspath(value)) else super().convert(value, param, ctx)
        )


class RunPath(LocalPath):
    """A path on this machine, as :class:`LocalPath`, or an address in object storage, as a text."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Pass an address on as it is."""
        return str(value) if is_address(value) else super().convert(value, param, ctx)


class SourcePath(LocalPath):
    """A run or a checkpoint to read: a path on this machine, or an address in object storage, which is downloaded.

    Args:
        weights: of a run at an address, download the newest checkpoint; else only the other files.
        foreign: also download what is neither a run nor a checkpoint of one.
    """

    def __init__(self, *, weights: bool = True, foreign: bool = True) -> None:
        super().__init__()
        self._weights, self._foreign = weights, foreign

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Download what is at an address into the cache."""
        if is_address(value) and not (ctx is not None and ctx.resilient_parsing):
            from recipe_core.checkpoint.remote.fetched import fetched

            value = fetched(str(value), show, weights=self._weights, foreign=self._foreign)
        return super().convert(value, param, ctx)


class StartedPath(LocalPath):
    """A run that was started on this machine: its folder, or its address, which stands for the working folder."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Find the working folder of an address."""
        if is_address(value) and not (ctx is not None and ctx.resilient_parsing):
            from recipe_core.checkpoint.remote import record

            folder = record.working_folder(str(ObjectPath.parse(os.fspath(value))))
            if record.read(folder) is None:
                raise ConfigError(
                    f"{value}: has no working folder on this machine (looked for {folder}); give the command on one "
                    f"where the run was started, with the same {record.WORK}"
                )
            value = folder
        return super().convert(value, param, ctx)


def show(text: str) -> None:
    """Print a line about what a command does to standard error."""
    click.echo(f"recipe: {text}", err=True)


def _record_command(ctx: click.Context, _: click.Parameter, debug: bool) -> None:
    line = ctx.ensure_object(Invocation)
    line.command, line.debug = ctx.command_path, line.debug or debug


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_record_command,
    help="Show the traceback of an error.",
)
processes_option = click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Processes on this machine (default: the recipe's, mostly 1).",
)
out_option = click.option(
    "--out", type=LocalPath(), metavar="DIR", help="The run folder (default: a new one in runs/)."
)
run_out_option = click.option(
    "--out",
    type=RunPath(),
    metavar="DIR|ADDRESS",
    help="The run folder (default: a new one in runs/), or an address in object storage (s3://BUCKET/RUN).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


def join(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return one decorator for several arguments and options, in the order of the help text."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add
