"""The words of commands about one recipe: its name or file, and overrides; and what is said about wrong ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recipe_core.cli.commands.describe import Detailed
from recipe_core.errors import ConfigError, RecipeError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])
_OVERRIDE = re.compile(r"[\w.]*=")
"""How a word begins that is an override, right or wrong, and not a recipe or a file."""


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from recipe_core.cli.completion import complete_words

    return complete_words(ctx.params.get("words") or (), incomplete)


def recipe_words(command: Command) -> Command:
    """Add the argument ``words``: the name and the overrides, in any order."""
    return click.argument(
        "words", nargs=-1, metavar="NAME[:VARIANT]|FILE [SECTION.SETTING=VALUE]...", shell_complete=_complete
    )(command)


class RecipeCommand(Detailed):
    """A command about a recipe. It knows what options and words of other tools are called here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the line.

        Raises:
            ConfigError: it has an option or a word that is written in another way here.
        """
        typed = list(args)
        if ctx.obj is not None:
            ctx.obj.command = ctx.command_path  # which messages begin with
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if text := _instead(error.option_name, typed):
                raise ConfigError(f"{error.option_name}: no such option; {text}") from error
            raise
        targets = _targets(ctx.params.get("words", ()))
        if len(targets) > 1 and (text := _one_of(targets)):
            raise ConfigError(text)
        return rest


def _instead(option: str, typed: Sequence[str]) -> str:
    """The words to write in the place of ``option``; empty: not known."""
    at = next((n for n, word in enumerate(typed) if word.partition("=")[0] == option), None)
    if at is None:
        return ""
    value = typed[at].partition("=")[2]
    if not value and "=" not in typed[at]:
        value = next((word for word in typed[at + 1 : at + 2] if not word.startswith("-") and "=" not in word), "")
    return _in_our_words(option, value, [word for word in typed if word not in (typed[at], value)])


def _in_our_words(word: str, value: str, line: Sequence[str]) -> str:
    from recipe_core.cli.completion import settings_on
    from recipe_core.hooks.registry import load
    from recipe_core.settings.field_words import words_for

    try:
        registry = load()
        words = [other for other in line if not other.startswith("-")]
        return words_for(word, value, set(settings_on(registry, words)), registry)
    except RecipeError:  # a mistake in the line, which another message is about
        return ""


def _one_of(targets: Sequence[str]) -> str:
    """The right words where one recipe and something else are named."""
    from recipe_core.hooks.registry import load

    recipe, word, *rest = targets
    registry = load()
    if recipe in registry.names("recipe") and word in registry.get("recipe", recipe).variants:
        return f"{word}: a variant is written with a colon: `{recipe}:{word}`"
    text = _in_our_words(word, rest[0] if rest else "", [recipe]).removesuffix(", without dashes")
    return f"{word}: a setting is written section.setting=value; {text}" if text else ""


def _targets(words: Sequence[str]) -> list[str]:
    return [word for word in words if not _OVERRIDE.match(word)]


def run_folder(words: Sequence[str]) -> tuple[tuple[str, ...], Path | None]:
    """The words with a run folder replaced by its settings, and the folder; the words as they are where none is named.

    Raises:
        ConfigError: a folder is named that no run wrote.
    """
    targets = _targets(words)
    if len(targets) != 1 or not (folder := Path(targets[0])).is_dir() or not _is_path(targets[0]):
        return tuple(words), None
    settings = folder / "job.yaml"
    if not settings.is_file():
        raise ConfigError(f"{folder}: is not a run folder (no job.yaml in it); name a recipe, a file or a run folder")
    return tuple(str(settings) if word == targets[0] else word for word in words), folder


def _is_path(target: str) -> bool:
    """True if ``target`` can be no recipe: a folder may have the name of one."""
    from recipe_core.hooks.registry import load

    return "/" in target or target not in load().names("recipe")


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The recipe and the overrides, which may stand in any order."""
    overrides, targets = [word for word in words if _OVERRIDE.match(word)], _targets(words)
    if not targets:
        raise click.UsageError("name a recipe (`recipe ls` lists them), or a file that `recipe show` wrote")
    if len(targets) > 1:
        raise click.UsageError(
            f"expected one recipe, got {' and '.join(map(repr, targets))}; a setting is written section.setting=value"
        )
    if Path(targets[0]).is_file() and not targets[0].endswith((".yaml", ".yml")):
        raise ConfigError(
            f"{targets[0]}: is a file, but none of settings (.yaml); name a recipe first, and data as a setting: "
            f"recipe run megatron_gpt data.files={targets[0]}"
        )
    return targets[0], overrides
