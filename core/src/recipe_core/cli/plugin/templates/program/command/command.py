"""The command. Import torch within functions, if you need it: --help and completion import this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from recipe_core import job_of


@click.command()
@click.argument("first", metavar="NAME[:VARIANT]|FILE|RUN")
@click.argument("second", metavar="NAME[:VARIANT]|FILE|RUN")
@click.option("--section", help="Compare one section only, such as train.")
def differences(first: str, second: str, section: str | None) -> int:
    """Print the settings in which two recipes, files of settings or runs differ.

    It exits with 1 if there are any, as diff does.
    """
    # Mistakes of the user are errors of recipe_core or of click; their text is all that is printed.
    settings = [flat(job_of([name]).as_dict()) for name in (first, second)]
    known = {path for one in settings for path in one if "." in path}  # without the names of recipe and variant
    paths = sorted(path for path in known if section in (None, path.partition(".")[0]))
    lines = [
        f"{path}: {settings[0].get(path, 'none')} | {settings[1].get(path, 'none')}"
        for path in paths
        if settings[0].get(path) != settings[1].get(path)
    ]
    for line in lines:
        click.echo(line)
    return int(bool(lines))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by path: ``{"train.lr": 0.1}``."""
    paths: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            paths |= flat(value, f"{prefix}{name}.")
        else:
            paths[f"{prefix}{name}"] = value
    return paths
