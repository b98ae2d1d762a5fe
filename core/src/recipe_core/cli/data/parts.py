"""``part=K/N`` of ``recipe prepare``, and ``recipe prepare merge``. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.errors import ConfigError, DataError, PluginError

if TYPE_CHECKING:
    from recipe_core.data.prepare import PreparePart
    from recipe_core.hooks.specs import Dataset

MERGE, PART = "merge", "part"
USAGE = """\
`recipe prepare merge OUTPUT PARTS...` makes the data set OUTPUT of the folders that `recipe prepare ... part=K/N` has
made, all N of them in any order. Its files equal those of one process, byte for byte."""
DESCRIPTION = """\
part=K/N
    Make part K of N, from 1 to N, into `output`; `recipe prepare merge` joins them."""


def part_of(spec: Dataset, words: Sequence[str]) -> tuple[PreparePart | None, list[str]]:
    """Return the part that ``part=K/N`` names, None without it, and the other words.

    Raises:
        ConfigError: it is no K/N, or the dataset does not declare how it divides.
    """
    from recipe_core.data.prepare import PreparePart

    own = any(setting.name == PART for setting in fields(spec.prepare_config))
    values = [word.partition("=")[2] for word in words if word.startswith(f"{PART}=") and not own]
    if not values:
        return None, [*words]
    if not spec.prepare_part or not spec.merge_parts:
        raise ConfigError(f"part: the dataset {spec.name!r} does not say how it divides; prepare it without part=")
    return PreparePart.parse(values[-1]), [word for word in words if not word.startswith(f"{PART}=")]


def merge(datasets: Mapping[str, Dataset], arguments: Sequence[str]) -> tuple[Mapping[str, Any], str]:
    """Merge parts; return the manifest of the data set, and its folder.

    Raises:
        ConfigError: the output exists.
        DataError: the parts are not all of one preparation, or damaged.
        PluginError: no installed plugin merges them.
    """
    from recipe_core.data.prepare.parts import read_parts
    from recipe_core.files import require_local
    from recipe_core.settings.fill import fill

    if len(arguments) < 2:
        raise click.UsageError("expected the folder to make and then the parts: recipe prepare merge OUTPUT PARTS...")
    output, *folders = map(Path, arguments)
    for name, path in (("output", output), *(("parts", folder) for folder in folders)):
        require_local(path, name)
    if output.exists() or output.is_symlink():
        raise ConfigError(f"output: {output} exists; name another folder before the parts")
    parts = read_parts(folders)
    kind, problems = parts[0].manifest["kind"], list[str]()
    spec = datasets.get(kind)
    if spec is None or not spec.merge_parts:
        raise PluginError(
            f"{parts[0]}: is a part of a {kind}, and no installed plugin merges these; install its plugin"
        )
    settings = fill(spec.prepare_config, {**parts[0].manifest["settings"], "output": str(output)}, kind, problems)
    if problems:
        raise DataError(
            f"{parts[0]}: its settings are not those of this version ({problems[0]}); prepare the parts again"
        )
    return called(spec.merge_parts, spec, settings, parts), str(output)


def called(target: str, spec: Dataset, *arguments: object) -> Mapping[str, Any]:
    """Call a function of a dataset that returns a manifest.

    Raises:
        PluginError: it fails with an error of its own, or returns something else.
    """
    from recipe_core.hooks.target import as_plugin_error, load

    owner = f"dataset {spec.name!r}"
    function = load(target, owner)
    with as_plugin_error(f"{owner}: {target!r}", MemoryError):
        manifest = function(*arguments)
    if not isinstance(manifest, Mapping):
        raise PluginError(f"{owner}: {target!r} returned {manifest!r:.60}; expected the manifest, a dict")
    return manifest
