"""The commands ``recipe inspect`` and ``recipe verify``. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import click

from recipe_core.cli.options import LocalPath, SourcePath, debug_option, load_plugins
from recipe_core.errors import DataError, ExitCode

if TYPE_CHECKING:
    from recipe_core.data.prepare import DataFiles, Inspection
    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs import Dataset


@runtime_checkable
class Unchecked(Protocol):
    """A reader of files that may hold values without checksums."""

    def unchecked(self, path: Path) -> str:
        """Return a description of the values without checksums; empty if there are none."""
        ...


_BAR = 40
"""Columns of the longest bar of a histogram."""


@click.command()
@click.argument("path", type=SourcePath(foreign=False))
@click.option(
    "--tokenizer",
    type=LocalPath(),
    metavar="FILE",
    help="A tokenizer.json or vocab.txt to show an example by (default: the one beside the files).",
)
@debug_option
def inspect(path: Path, tokenizer: Path | None) -> None:
    """Show what a prepared data set or a checkpoint holds.

    PATH is the folder of a data set, one of its files, or their common path without the ending; or a checkpoint, or
    a run folder, for its newest one.
    """
    readers = _files(load_plugins(), path)
    click.echo("\n\n".join(_inspection_text(path, files.inspect(path, tokenizer)) for files in readers))


@click.command()
@click.argument("path", type=SourcePath(foreign=False))
@debug_option
def verify(path: Path) -> int:
    """Check the files of a prepared data set, or of checkpoints.

    All of them are read, and compared with the hashes of the manifest where there is one. The command ends with 1
    when something is wrong.
    """
    readers = _files(load_plugins(), path)
    problems = [problem for files in readers for problem in files.verify(path)]
    for problem in problems:
        click.echo(problem)
    for files in readers:
        if unchecked := files.unchecked(path) if isinstance(files, Unchecked) and not problems else "":
            click.echo(f"{path}: not checked: {unchecked}")
    count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    click.echo(f"{path}: {count if problems else 'no problem found'}", err=bool(problems))
    return ExitCode.FINDING if problems else ExitCode.FINISHED


def datasets_of(registry: Registry) -> dict[str, Dataset]:
    return {name: registry.get("data", name) for name in registry.names("data")}


def _files(registry: Registry, path: Path) -> list[DataFiles]:
    """Return the readers of the files at ``path``.

    Raises:
        DataError: there is nothing at ``path``, or nothing that a plugin recognises.
    """
    from recipe_core.checkpoint.locate import formats_at
    from recipe_core.checkpoint.manifest import NAME
    from recipe_core.data.prepare.part_files import PartFiles
    from recipe_core.data.prepare.parts import is_part
    from recipe_core.hooks.target import as_plugin_error, load

    checkpoints = "recipe_core.checkpoint.inspect:CheckpointFiles"
    if is_part(path):
        return [PartFiles()]
    if _holds_checkpoints(path, NAME):
        return [load(checkpoints, "the core")(registry)]
    known = {name: spec for name, spec in datasets_of(registry).items() if spec.files}
    # Several datasets may share a reader.
    readers = {spec.files: load(spec.files, f"dataset {name!r}") for name, spec in known.items()}
    matching: list[DataFiles] = []
    for target, reader in readers.items():
        with as_plugin_error(repr(target), MemoryError):
            files = reader()
            matching += [files] if files.detect(path) else []
    if matching:
        return matching
    if formats_at(registry, path):
        return [load(checkpoints, "the core")(registry)]
    kinds = ", ".join(known) or "none"
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder, nor files that start with this name")
    raise DataError(
        f"{path}: holds no data set that an installed plugin knows (they know: {kinds}), and no checkpoint either"
    )


def _holds_checkpoints(path: Path, manifest: str) -> bool:
    """True for a checkpoint, complete or not, a folder of checkpoints, or a run folder."""
    if (path / manifest).is_file() or (path.is_dir() and path.name.startswith("step-")):
        return True
    return any(folder.is_dir() and any(folder.glob("step-*")) for folder in (path, path / "checkpoints"))


def _inspection_text(path: Path, inspection: Inspection) -> str:
    blocks = [f"{click.style(str(path), bold=True)}: {inspection.kind}", table(inspection.facts)]
    if inspection.lengths:
        blocks.append(_histogram(inspection.lengths))
    if inspection.example is not None:
        blocks.append(f"{click.style('An example', bold=True)}\n\n{inspection.example}")
    return "\n\n".join(blocks)


def table(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"  {name:{width}}  {value}" for name, value in rows)


def _histogram(lengths: Sequence[tuple[str, int]]) -> str:
    most = max(count for _, count in lengths) or 1
    widths = max(len(label) for label, _ in lengths), max(len(f"{count:,}") for _, count in lengths)
    lines = [
        f"  {label:>{widths[0]}}  {count:>{widths[1]},}  {'█' * max(round(_BAR * count / most), count > 0)}".rstrip()
        for label, count in lengths
    ]
    return "\n".join([click.style("Lengths", bold=True), "", *lines])
