"""The commands ``recipe convert`` and ``recipe merge``. No torch here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.options import LocalPath, SourcePath, debug_option, join, load_plugins
from recipe_core.settings.fill import from_words

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import Registry


def _formats(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import load

    return [CompletionItem(name) for name in load().names("checkpoint") if name.startswith(incomplete)]


_path_arguments = join(
    click.argument("source", type=SourcePath(), metavar="SRC"),
    click.argument("target", type=LocalPath(), metavar="DST"),
    click.argument("overrides", nargs=-1, metavar="[SETTING=VALUE]..."),
)
_source_options = join(
    click.option(
        "--from",
        "form",
        metavar="FORMAT",
        shell_complete=_formats,
        help="The format of SRC, where its files don't tell.",
    ),
    click.option("--recipe", metavar="NAME[:VARIANT]", help="A recipe of the model in SRC, where it doesn't tell."),
    click.option("--drop", type=click.Choice(["optimizer"]), help="Leave out the optimizer's states."),
    click.option(
        "--weights", metavar="CALLBACK", help="Take the weights that a callback kept (ema), without the optimizer."
    ),
)


@click.command()
@_path_arguments
@click.option("--to", "to", required=True, metavar="FORMAT", shell_complete=_formats, help="The format to make.")
@_source_options
@debug_option
def convert(source: Path, target: Path, overrides: tuple[str, ...], to: str, **options: str | None) -> None:
    """Turn a checkpoint into one of another format.

    SRC is a run folder (its newest checkpoint is taken), the folder of a checkpoint, or a file. The folder DST
    appears when everything is written and compared with SRC, bit by bit. The settings are those of the format
    (tp=4 pp=2 for those with a file for each rank); `recipe ls` lists the formats.
    """
    plugins = load_plugins()
    _convert(plugins, source, target, plugins.get("checkpoint", to), overrides, options)


@click.command()
@_path_arguments
@_source_options
@debug_option
def merge(source: Path, target: Path, overrides: tuple[str, ...], **options: str | None) -> None:
    """Join the shards of a checkpoint into one of the same format.

    It is `recipe convert` to the format of SRC with tp=1 and pp=1, or, for hf, with one file of tensors; the
    folder DST appears when everything is written and compared with SRC, bit by bit.
    """
    from recipe_core.checkpoint.locate import find

    plugins = load_plugins()
    spec = find(plugins, source, options["form"], hashes=False).format
    _convert(plugins, source, target, spec, (*spec.whole, *overrides), options)


def _convert(
    plugins: Registry,
    source: Path,
    target: Path,
    spec: Any,
    overrides: Sequence[str],
    options: Mapping[str, str | None],
) -> None:
    from recipe_core.checkpoint.locate import Request
    from recipe_core.engine.memory import huge_pages, return_freed_memory
    from recipe_core.hooks.specs import Part, load

    request = Request(
        source=source,
        target=target,
        to=Part(spec, from_words(spec.config, spec.name, overrides)),
        format=options["form"],
        recipe=options["recipe"],
        drop_optimizer=options["drop"] == "optimizer" or options["weights"] is not None,
        weights_of=options["weights"],
    )
    return_freed_memory()
    with _clean_up_on_signals(), huge_pages():
        rows = load("recipe_core.checkpoint.convert.convert:convert", "the core")(plugins, request)
    width = max(len(name) for name, _ in rows)
    click.echo("\n".join(f"  {name:{width}}  {text}" for name, text in rows))


@contextmanager
def _clean_up_on_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP, so that partial files are removed, as on Ctrl-C."""
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):  # the terminal was closed
            os.write(2, f"recipe: ended by {signal.Signals(number).name}\n".encode())
        received.append(number)
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    in_main_thread = threading.current_thread() is threading.main_thread()  # other threads cannot set a handler
    handled = [number for number in numbers if in_main_thread and signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    except Exception:
        if received:  # PyTorch's reader, in C, swallows the handler's exception and fails with another
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
