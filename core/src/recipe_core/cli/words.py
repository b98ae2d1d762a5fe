"""The words of commands about one recipe: its name or file, and overrides."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

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


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The recipe and the overrides, which may stand in any order."""
    overrides = [word for word in words if _OVERRIDE.match(word)]
    targets = [word for word in words if not _OVERRIDE.match(word)]
    if not targets:
        raise click.UsageError("name a recipe (`recipe ls` lists them), or a file that `recipe show` wrote")
    if len(targets) > 1:
        raise click.UsageError(
            f"expected one recipe, got {' and '.join(map(repr, targets))}; a setting is written section.setting=value"
        )
    return targets[0], overrides
