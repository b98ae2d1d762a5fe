"""The command ``recipe convert``. No torch here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.config import from_words

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from recipe_core.registry import Registry


def add_convert_command(group: click.Group, debug: Callable[[Any], Any], registry: Callable[[], Registry]) -> None:
    """Add the command to ``group``; ``debug`` decorates it, ``registry`` loads the plugins."""

    @group.command()
    @click.argument("source", type=click.Path(path_type=Path), metavar="SRC")
    @click.argument("target", type=click.Path(path_type=Path), metavar="DST")
    @click.argument("words", nargs=-1, metavar="[SETTING=VALUE]...")
    @click.option("--to", "to", required=True, metavar="FORMAT", shell_complete=_formats, help="The format to make.")
    @click.option(
        "--from",
        "form",
        metavar="FORMAT",
        shell_complete=_formats,
        help="The format of SRC, where its files don't tell.",
    )
    @click.option("--recipe", metavar="NAME[:VARIANT]", help="A recipe of the model in SRC, where it doesn't tell.")
    @click.option("--drop", type=click.Choice(["optimizer"]), help="Leave out the optimizer's states.")
    @debug
    def convert(
        source: Path,
        target: Path,
        words: tuple[str, ...],
        to: str,
        form: str | None,
        recipe: str | None,
        drop: str | None,
    ) -> None:
        """Turn a checkpoint into one of another format.

        SRC is a run folder (its newest checkpoint is taken), the folder of a checkpoint, or a file. The folder DST
        appears when everything is written and compared with SRC, bit by bit. The settings are those of the format;
        `recipe ls` lists the formats.
        """
        from recipe_core.sources import Request
        from recipe_core.specs import Part, load

        plugins = registry()
        spec = plugins.get("checkpoint", to)
        part = Part(spec, from_words(spec.config, to, words))
        request = Request(
            source=source, target=target, to=part, format=form, recipe=recipe, drop_optimizer=drop == "optimizer"
        )
        rows = load("recipe_core.convert:convert", "the core")(plugins, request)
        width = max(len(name) for name, _ in rows)
        click.echo("\n".join(f"  {name:{width}}  {text}" for name, text in rows))


def _formats(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from recipe_core.registry import load

    return [CompletionItem(name) for name in load().names("checkpoint") if name.startswith(incomplete)]
