"""The group ``recipe``: the commands of the core, and those of plugins.

Plugins are loaded only for a name that the core does not have, and for help and completion. The code of a plugin's
command is imported only when it is called, asked for help, or completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.options import Invocation, debug_option, load_plugins
from recipe_core.errors import ExitCode, PluginError, RecipeError, did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs.command import CommandSpec

_COMMANDS_ELSEWHERE = {
    "help": "recipe --help", "version": "recipe --version", "list": "recipe ls", "init": "recipe plugin new NAME",
    **dict.fromkeys(("train", "fit", "start", "pretrain"), "recipe run NAME"), "resume": "recipe run FOLDER",
    **dict.fromkeys(("finetune", "fine-tune", "sft"), "recipe run hf_finetune"),
    **dict.fromkeys(("test", "evaluate", "validate"), "recipe eval RUN"),
    **dict.fromkeys(("chat", "predict", "sample", "infer", "inference"), "recipe generate RUN"),
    **dict.fromkeys(("export", "save"), "recipe convert RUN FOLDER --to FORMAT"),
    **dict.fromkeys(("tokenize", "preprocess"), "recipe prepare NAME"),
    **dict.fromkeys(("config", "settings"), "recipe show NAME"), "plot": "recipe report RUN...",
}  # fmt: skip
"""Commands of other tools, and ours for them."""
_OF_PLUGIN = "recipe_core.cli.commands.group"
"""Key in ``ctx.meta`` of the plugin's command that runs, as messages name it."""
_ENDINGS = (click.exceptions.Exit, SystemExit, BrokenPipeError)
"""Errors by which a command ends without a mistake."""


class RecipeGroup(click.Group):
    """Lists the commands in the order of their definition, then those of plugins; suggests one for a mistyped name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands of the core."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of the core, and under their own heading those of plugins."""
        super().format_commands(ctx, formatter)
        if rows := _summaries(load_plugins()):
            with formatter.section("Commands of plugins"):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin with ``incomplete``."""
        from click.shell_completion import CompletionItem

        from recipe_core.hooks.registry import load

        of_plugins = [
            CompletionItem(name, help=summary) for name, summary in _summaries(load()) if name.startswith(incomplete)
        ]
        return [*super().shell_complete(ctx, incomplete), *of_plugins]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return name, command and remaining arguments; a name that the core does not have is a plugin's command."""
        name = args[0]
        if name in self.commands or name.startswith("-"):
            return super().resolve_command(ctx, args)
        if ctx.resilient_parsing:  # completion, which prints no messages
            return name, _completed(name), args[1:]
        registry = load_plugins()
        if name not in registry.contested["command"] and not registry.owner("command", name):
            if name in _COMMANDS_ELSEWHERE:
                ctx.fail(f"no command {name!r}; write `{_COMMANDS_ELSEWHERE[name]}`")
            known = [*self.commands, *registry.names("command")]
            ctx.fail(f"no command {name!r}{did_you_mean(name, known)} (commands: {', '.join(known)})")
        spec = registry.get("command", name)
        command = load_command(spec)
        ctx.meta[_OF_PLUGIN] = f"command {spec.name!r}: {spec.build!r}"
        return name, command, args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command of the line; return its exit code.

        Raises:
            PluginError: a plugin's command raises an error that is not a message to the user.
        """
        try:
            result = super().invoke(ctx)
        except BaseException as error:
            if (code := ctx.meta.get(_OF_PLUGIN)) is None:
                raise
            return _ended(ctx, error, code)
        return _exit_code(result, ctx.meta[_OF_PLUGIN]) if _OF_PLUGIN in ctx.meta else result


def load_command(spec: CommandSpec) -> click.Command:
    """Import and return the command of a plugin, with the option ``--debug``.

    Raises:
        PluginError: it cannot be imported, is not a command, or has two options of one name.
    """
    from recipe_core.hooks.target import load

    owner = f"command {spec.name!r}"
    command: object = load(spec.build, owner)
    if not isinstance(command, click.Command):
        raise PluginError(
            f"{owner}: {spec.build!r} is {command!r:.60}; expected a click command (write @click.command() above the "
            "function)"
        )
    for one in _with_subcommands(command):
        names = [name for param in one.params for name in (*param.opts, *param.secondary_opts)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise PluginError(f"{owner}: {spec.build!r} has two options {twice} ({one.name}); rename one of them")
        if "--debug" not in names:
            debug_option(one)
    return command


def _with_subcommands(command: click.Command) -> Iterator[click.Command]:
    yield command
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _with_subcommands(subcommand)


def _summaries(registry: Registry) -> list[tuple[str, str]]:
    return [(name, registry.get("command", name).summary) for name in registry.names("command")]


def _completed(name: str) -> click.Command:
    """Return the command of a plugin for completion; one without arguments in place of one that is missing."""
    from recipe_core.hooks.registry import load

    try:
        return load_command(load().get("command", name))
    except RecipeError:
        return click.Command(name)


def _ended(ctx: click.Context, error: BaseException, code: str) -> int:
    """Return the exit code of a plugin's command that ended by ``error``, or raise the error that the user sees."""
    from recipe_core.hooks.target import as_plugin_error

    if isinstance(error, SystemExit) and isinstance(error.code, str):
        click.echo(error.code, err=True)  # as Python does
        return ExitCode.FINDING
    if isinstance(error, SystemExit):
        return _exit_code(error.code, code)
    if isinstance(error, click.Abort) and not ctx.ensure_object(Invocation).interrupted:
        raise click.ClickException("aborted") from error  # a question was answered with no, or not at all
    with as_plugin_error(code, click.ClickException, click.Abort, passes=lambda one: isinstance(one, _ENDINGS)):
        raise error


def _exit_code(result: object, code: str) -> int:
    """Return what a plugin's command returned as an exit code; 0 for anything but an integer."""
    if not isinstance(result, int) or isinstance(result, bool):
        return ExitCode.FINISHED
    if not 0 <= result <= 255:
        raise PluginError(f"{code} returned {result}; expected an exit code from 0 to 255")
    return result
