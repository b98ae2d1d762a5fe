"""Arguments of commands about one recipe: its name or file, and overrides; and messages about mistyped ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.cli.commands.describe import DescribedCommand
from recipe_core.cli.options import Command, Invocation, load_plugins
from recipe_core.errors import ConfigError, RecipeError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from recipe_core.settings.job import Job

_OVERRIDE = re.compile(r"[\w.]*=")
"""Start of an override, valid or not; everything else is a recipe or a file."""


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from recipe_core.cli.completion import complete_arguments

    return complete_arguments(ctx.params.get("arguments") or (), incomplete)


def recipe_arguments(command: Command) -> Command:
    """Add the argument ``arguments`` of a command about a recipe: its name, and overrides, in any order.

    They are completed as those of ``recipe run``. :func:`job_of` resolves them.
    """
    return click.argument(
        "arguments", nargs=-1, metavar="NAME[:VARIANT]|FILE [SECTION.SETTING=VALUE]...", shell_complete=_complete
    )(command)


class RecipeCommand(DescribedCommand):
    """A click command about a recipe: ``@click.command(cls=RecipeCommand)`` above ``@recipe_arguments``.

    It suggests the setting for options of other tools, and explains mistakes in the arguments.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the line.

        Raises:
            ConfigError: an option or argument has another spelling here.
        """
        original = list(args)
        ctx.ensure_object(Invocation).command = ctx.command_path  # which messages begin with
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if text := _replacement(error.option_name, original):
                raise ConfigError(f"{error.option_name}: no such option; {text}") from error
            raise
        targets = targets_of(ctx.params.get("arguments", ()))
        if len(targets) > 1 and (text := _correction(targets)):
            raise ConfigError(text)
        return rest


def _replacement(option: str, line: Sequence[str]) -> str:
    index = next((n for n, argument in enumerate(line) if argument.partition("=")[0] == option), None)
    if index is None:
        return ""
    value = line[index].partition("=")[2]
    if not value and "=" not in line[index]:
        following = line[index + 1 : index + 2]
        value = next((argument for argument in following if not argument.startswith("-") and "=" not in argument), "")
    return _as_setting(option, value, [argument for argument in line if argument not in (line[index], value)])


def _as_setting(name: str, value: str, line: Sequence[str]) -> str:
    from recipe_core.cli.completion import settings_on
    from recipe_core.hooks.registry import load
    from recipe_core.settings.field_words import words_for

    try:
        registry = load()
        arguments = [argument for argument in line if not argument.startswith("-")]
        return words_for(name, value, set(settings_on(registry, arguments)), registry)
    except RecipeError:  # a mistake in the line, which another message is about
        return ""


def _correction(targets: Sequence[str]) -> str:
    from recipe_core.hooks.registry import load

    recipe, second, *rest = targets
    registry = load()
    if recipe in registry.names("recipe") and second in registry.get("recipe", recipe).variants:
        return f"{second}: a variant is written with a colon: `{recipe}:{second}`"
    text = _as_setting(second, rest[0] if rest else "", [recipe]).removesuffix(", without dashes")
    return f"{second}: a setting is written section.setting=value; {text}" if text else ""


def targets_of(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are no overrides: a recipe, a file or a run folder."""
    return [argument for argument in arguments if not _OVERRIDE.match(argument)]


def run_folder(arguments: Sequence[str]) -> tuple[tuple[str, ...], Path | None]:
    """Replace a run folder by its job.yaml; return the arguments and the folder, or None if there is no folder.

    Raises:
        ConfigError: the folder is not a run folder.
    """
    targets = targets_of(arguments)
    if len(targets) != 1 or not (folder := Path(targets[0])).is_dir() or not _is_path(targets[0]):
        return tuple(arguments), None
    settings = folder / "job.yaml"
    if not settings.is_file():
        raise ConfigError(f"{folder}: is not a run folder (no job.yaml in it); name a recipe, a file or a run folder")
    return tuple(str(settings) if argument == targets[0] else argument for argument in arguments), folder


def _is_path(target: str) -> bool:
    from recipe_core.hooks.registry import load

    # A folder may have the name of a recipe.
    return "/" in target or target not in load().names("recipe")


def split(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Split the arguments into the recipe and the overrides.

    Raises:
        ConfigError: a file is named that holds no settings.
        UsageError: no recipe is named, or several are.
    """
    overrides, targets = [argument for argument in arguments if _OVERRIDE.match(argument)], targets_of(arguments)
    if not targets:
        raise click.UsageError("name a recipe (`recipe ls` lists them), or a file that `recipe show` wrote")
    if len(targets) > 1:
        raise click.UsageError(
            f"expected one recipe, got {' and '.join(map(repr, targets))}; a setting is written section.setting=value"
        )
    if Path(targets[0]).is_dir() and _is_path(targets[0]):
        settings = Path(targets[0]) / "job.yaml"
        known = f"its settings are in {settings}" if settings.is_file() else "and no run, for it holds no job.yaml"
        raise ConfigError(f"{targets[0]}: is a folder, {known}; name a recipe, or a file of settings")
    if Path(targets[0]).is_file() and not targets[0].endswith((".yaml", ".yml")):
        raise ConfigError(
            f"{targets[0]}: is a file, but none of settings (.yaml); name a recipe first, and data as a setting: "
            f"recipe run megatron_gpt data.files={targets[0]}"
        )
    return targets[0], overrides


def job_of(arguments: Sequence[str]) -> Job:
    """Return the job of a command line: a recipe, a file of settings or a run folder, and overrides, in any order.

    Settings are checked as by ``recipe show``; the machine is not.

    Raises:
        RecipeError: the line names no recipe, or a setting is wrong.
        UsageError: click's; the line names no recipe, or several.
    """
    from recipe_core.settings.job import resolve

    target, overrides = split(run_folder(arguments)[0])
    return resolve(load_plugins(), target, overrides)
