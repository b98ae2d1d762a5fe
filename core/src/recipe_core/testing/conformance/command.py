"""The output of ``recipe plugin check``. No torch here; the checks import it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.markers import GROUP
from recipe_core.hooks.registry import Registry

if TYPE_CHECKING:
    from recipe_core.testing.conformance.outcome import Outcome

_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}
_CORE = "core"
_MARGIN = 29
"""Width of the columns before the text of an outcome."""


def check_plugins(registry: Registry, name: str | None, *, everything: bool) -> int:
    """Check the plugin ``name``, or all that are installed, and print a line for each check; return the exit code.

    Raises:
        PluginError: the plugin is not installed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny, and the ranks share the cores
    modules = _modules()
    counts: Counter[str] = Counter()
    for plugin in _selected(registry, name, everything=everything):
        click.echo(click.style(plugin, bold=True))
        if plugin in registry.broken:
            counts["failed"] += 1
            click.echo(_line("failed", "loads", registry.broken[plugin]))
            continue
        for outcome in _outcomes(plugin, modules[plugin], registry):
            counts[outcome.state] += 1
    if not counts:
        click.echo("no plugin is installed but the core's own (--all checks it); `recipe plugin new NAME` makes one")
        return 0
    click.echo(f"\n{', '.join(f'{counts[state]} {state}' for state in _COLOURS)}")
    return 2 if counts["failed"] else 0


def _selected(registry: Registry, name: str | None, *, everything: bool) -> list[str]:
    known = [*registry.plugins, *registry.broken]
    if name is None:
        return [plugin for plugin in known if everything or plugin != _CORE]
    normalised = name.removeprefix("recipe-").replace("-", "_")
    if name not in known and normalised not in known:
        hint = did_you_mean(normalised, known) or "; install it first: pip install -e FOLDER"
        raise PluginError(f"no plugin {name!r} is installed{hint} (there are: {', '.join(known)})")
    return [name if name in known else normalised]


def _modules() -> Mapping[str, str]:
    return {point.name: point.value for point in importlib.metadata.entry_points(group=GROUP)}


def _outcomes(plugin: str, module: str, registry: Registry) -> Iterator[Outcome]:
    from recipe_core.testing.conformance.examine import examine
    from recipe_core.testing.conformance.subject import Plugin

    start, heading = time.monotonic(), plugin
    with tempfile.TemporaryDirectory(prefix="recipe-check-") as folder:
        outcomes = examine(Plugin(plugin, module, registry, Path(folder)), announce=_show_progress)
        for outcome in outcomes:
            _show_progress()
            if outcome.subject != heading:
                heading = outcome.subject
                click.echo(f"\n {heading}")
            click.echo(_line(outcome.state, outcome.check, outcome.text))
            yield outcome
    click.echo(f"\n {plugin}: {time.monotonic() - start:.0f} s")


def _line(state: str, check: str, text: str) -> str:
    """State, check and text in columns; continuation lines are indented to the text."""
    width = max(40, shutil.get_terminal_size().columns - _MARGIN)
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, width)] or [""]
    head = f"  {click.style(state.ljust(8), fg=_COLOURS[state])} {check:17} "
    return f"\n{'':{_MARGIN}}".join([head + lines[0], *lines[1:]]).rstrip()


def _show_progress(subject: str = "", check: str = "") -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{f'  ... {subject}: {check}' if subject else ''}", nl=False, err=True)
