"""The commands ``recipe inspect`` and ``recipe verify``. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import click

from recipe_core.cli.options import DataPath, LocalPath, debug_option, load_plugins, show
from recipe_core.errors import DataError, ExitCode
from recipe_core.files.objects import ObjectPath

if TYPE_CHECKING:
    from recipe_core.data.prepare import DataFiles, Inspection
    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs import Dataset


@runtime_checkable
class Unchecked(Protocol):
    """A reader of files that may hold values without checksums."""

    def unchecked(self, path: Any) -> str:
        """Return a description of the values without checksums; empty if there are none."""
        ...


_BAR = 40
"""Columns of the longest bar of a histogram."""


@click.command()
@click.argument("path", type=DataPath())
@click.option(
    "--tokenizer",
    type=LocalPath(),
    metavar="FILE",
    help="A tokenizer.json or vocab.txt to show an example by (default: the one beside the files).",
)
@debug_option
def inspect(path: Path | ObjectPath, tokenizer: Path | None) -> None:
    """Show what a prepared data set or a checkpoint holds.

    PATH is the folder of a data set, one of its files, or their common path without the ending; or a checkpoint, or
    a run folder, for its newest one. It may be the address of token files, a run or a checkpoint in object storage
    (s3://bucket/data).
    """
    path, readers = _files(load_plugins(), path)
    click.echo("\n\n".join(_inspection_text(path, files.inspect(path, tokenizer)) for files in readers))


@click.command()
@click.argument("path", type=DataPath())
@debug_option
def verify(path: Path | ObjectPath) -> int:
    """Check the files of a prepared data set, or of checkpoints.

    All of them are read, and compared with the hashes of the manifest where there is one. The command ends with 1
    when something is wrong.
    """
    path, readers = _files(load_plugins(), path)
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


def _files(registry: Registry, path: Path | ObjectPath) -> tuple[Path | ObjectPath, list[Any]]:
    """Return the place of the files, and their readers.

    At an address, data sets are read by those that read objects (``objects = True``); a run or a checkpoint is
    downloaded.

    Raises:
        DataError: there is nothing at ``path``, or nothing that a plugin recognises.
    """
    if isinstance(path, Path):
        return path, _local_readers(registry, path)
    if readers := _object_readers(registry, path):
        return path, readers
    from recipe_core.checkpoint.remote.fetched import fetched

    copy = fetched(str(path), show, foreign=False)
    return copy, _local_readers(registry, copy)


def _local_readers(registry: Registry, path: Path) -> list[Any]:
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


def _object_readers(registry: Registry, place: ObjectPath) -> list[Any]:
    from recipe_core.hooks.target import as_plugin_error, load

    matching = []
    for target, name in {spec.files: name for name, spec in datasets_of(registry).items() if spec.files}.items():
        files = load(target, f"dataset {name!r}")()
        if getattr(files, "objects", False):
            with as_plugin_error(repr(target), MemoryError):
                matching += [files] if files.detect(place) else []
    return matching


def _holds_checkpoints(path: Path, manifest: str) -> bool:
    """True for a checkpoint, complete or not, a folder of checkpoints, or a run folder."""
    if (path / manifest).is_file() or (path.is_dir() and path.name.startswith("step-")):
        return True
    return any(folder.is_dir() and any(folder.glob("step-*")) for folder in (path, path / "checkpoints"))


def _inspection_text(path: Path | ObjectPath, inspection: Inspection) -> str:
    blocks = [f"{click.style(str(path), bold=True)}: {inspection.kind}", table(inspection.facts)]
    if inspection.lengths:
        blocks.append(_histogram(inspection.lengths))
    blocks += _filter_blocks(path)
    if inspection.example is not None:
        blocks.append(f"{click.style('An example', bold=True)}\n\n{inspection.example}")
    return "\n\n".join(blocks)


def _filter_blocks(path: Path | ObjectPath) -> list[str]:
    """The counts and samples of filters in the manifest of a prepared data set; none for other paths."""
    from recipe_core.data.filters.counts import filter_rows, sample_lines
    from recipe_core.data.prepare.manifest import read_manifest

    try:
        folder = _folder_of(path)
        manifest = read_manifest(folder) if folder else {}
        rows, samples = filter_rows(manifest), sample_lines(manifest)
    except (DataError, LookupError, TypeError, AttributeError):  # `recipe verify` reports a damaged manifest
        return []
    lists = [("Filters", table(rows)), ("Dropped, for example", "\n".join(f"  {line}" for line in samples))]
    return [f"{click.style(title, bold=True)}\n\n{text}" for title, text in lists if text]


def _folder_of(path: Path | ObjectPath) -> Path | None:
    """The folder of a data set, or that of a copy of its manifest, if there is one."""
    from recipe_core.data.prepare.manifest import NAME
    from recipe_core.files.objects.copies import local_file

    if isinstance(path, Path):
        return path if path.is_dir() else path.parent
    copy = local_file(path / NAME) or local_file(path.parent / NAME)
    return copy.parent if copy else None


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
