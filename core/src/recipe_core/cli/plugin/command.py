"""The commands ``recipe plugin new`` and ``recipe plugin check``. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import Registry


_CHECKS = "recipe.plugin_check"
"""The group of entry points with the checks of a plugin, which belong to the tests and stand above all commands."""

_KINDS = (
    "model", "dataset", "layout", "format", "loss", "optimizer", "schedule", "tracker", "callback", "engine",
    "launcher", "executor", "command", "wrapper", "transform", "evaluation",
)  # fmt: skip


def add_plugin_command(group: click.Group, debug: Callable[[Any], Any], registry: Callable[[], Registry]) -> None:
    """Add the commands to ``group``; ``debug`` decorates them, ``registry`` loads the plugins."""

    @group.group()
    def plugin() -> None:
        """Make a plugin, or check one."""

    @plugin.command()
    @click.argument("name")
    @click.option(
        "--kind",
        type=click.Choice(_KINDS),
        default="model",
        show_default=True,
        help="What it is to add.",
    )
    @debug
    def new(name: str, kind: str) -> None:
        """Write the package of a new plugin into the folder NAME.

        It is complete: its tests pass, and it has a recipe NAME that trains. What is next is printed.
        """
        from recipe_core.cli.plugin.new import new_plugin

        folder = new_plugin(registry(), name, kind)
        recipe = folder.name.replace("-", "_")
        click.echo(f"{folder}: written; {folder}/src/recipe_{recipe}/plugin.py says what is where\n\nnext")
        for line, purpose in (
            (f"python -m pip install -e {folder}", "so that recipe finds it"),
            (f"recipe run {recipe}:tiny", "train for some seconds"),
            (f"recipe plugin check {recipe}", "everything that the core asks of a plugin"),
            (f"python -m pytest {folder}", "its own tests, these checks included"),
        ):
            click.echo(f"  {line:40}  # {purpose}")

    @plugin.command()
    @click.argument("name", required=False, shell_complete=_plugins)
    @click.option("--all", "everything", is_flag=True, help="Check the core's own contributions too.")
    @debug
    def check(name: str | None, everything: bool) -> int:
        """Check everything that the core asks of a plugin.

        Settings, code, sizes, data, exact resume, checkpoints, and every layout that the model claims, on one process
        and on two. NAME is a plugin that is installed, as `recipe ls` shows it; without it, all are checked. The
        command ends with 2 when a check fails.
        """
        from importlib.metadata import entry_points

        (checks,) = entry_points(group=_CHECKS)
        code: int = checks.load()(registry(), name, everything=everything)
        return code


def _plugins(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import load

    return [CompletionItem(name) for name in load().plugins if name.startswith(incomplete)]
