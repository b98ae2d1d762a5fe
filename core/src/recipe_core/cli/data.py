"""The commands ``recipe prepare``, ``recipe inspect`` and ``recipe verify``. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import click

from recipe_core.cli import parts
from recipe_core.cli.commands.describe import DescribedCommand, describe_class
from recipe_core.cli.options import LocalPath, debug_option, load_plugins
from recipe_core.errors import ConfigError, DataError, ExitCode, PluginError, RecipeError, did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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


class _PrepareCommand(DescribedCommand):
    """The command ``prepare``, whose settings are not options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the line.

        Raises:
            ConfigError: a setting is written as an option.
        """
        original = list(args)
        if ctx.obj is not None:
            ctx.obj.command = ctx.command_path  # which messages begin with
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            index = next(n for n, argument in enumerate(original) if argument.partition("=")[0] == error.option_name)
            value = original[index].partition("=")[2] or next(iter(original[index + 1 : index + 2]), "VALUE")
            name = error.option_name.lstrip("-").replace("-", "_")
            raise ConfigError(f"{error.option_name}: no such option; write `{name}={value}`") from error


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import load
    from recipe_core.settings.values import choices, kinds

    try:
        datasets = _preparable(load())
    except RecipeError:  # which the command itself reports
        return []
    name = next((argument for argument in ctx.params.get("arguments") or () if "=" not in argument), None)
    if name is None:
        return [CompletionItem(known) for known in (*datasets, parts.MERGE) if known.startswith(incomplete)]
    if name == parts.MERGE:
        return [CompletionItem(incomplete, type="dir")]
    if name not in datasets:
        return []
    declared = kinds(datasets[name].prepare_config)
    setting, equals, _ = incomplete.partition("=")
    values = [f"{setting}={value}" for value in choices(declared.get(setting))]
    texts = values if equals else [f"{known}=" for known in _settings(datasets[name])]
    return [CompletionItem(text) for text in texts if text.startswith(incomplete)]


def _settings(spec: Dataset) -> list[str]:
    from recipe_core.settings.values import kinds

    return [*kinds(spec.prepare_config), *([parts.PART] if spec.prepare_part else [])]


@click.command(cls=_PrepareCommand)
@click.argument("arguments", nargs=-1, metavar="[DATASET] [SETTING=VALUE]...", shell_complete=_complete)
@debug_option
def prepare(arguments: tuple[str, ...]) -> None:
    """Make a data set from text or dumps.

    An interrupted run continues where it was when the same command is given again. Without a name, what can be
    prepared is listed.

    With part=K/N, part K of N is made, on any machine; `recipe prepare merge OUTPUT PARTS...` joins all parts.
    """
    datasets = _preparable(load_plugins())
    if not arguments:
        click.echo(_listing(datasets))
    elif arguments[0] == parts.MERGE:
        click.echo(_summary(*parts.merge(datasets, arguments[1:])))
    else:
        click.echo(_prepare(datasets, arguments))


prepare.details = lambda arguments: _settings_of(_preparable(load_plugins()), arguments)


@click.command()
@click.argument("path", type=LocalPath())
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
@click.argument("path", type=LocalPath())
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


def _datasets(registry: Registry) -> dict[str, Dataset]:
    return {name: registry.get("data", name) for name in registry.names("data")}


def _preparable(registry: Registry) -> dict[str, Dataset]:
    return {name: spec for name, spec in _datasets(registry).items() if spec.prepare}


def _listing(datasets: Mapping[str, Dataset]) -> str:
    width = max(map(len, datasets), default=0)
    lines = []
    for name, spec in datasets.items():
        lines.append(f"  {click.style(name.ljust(width), fg='cyan')}  {spec.summary}".rstrip())
        lines += [f"  {'':{width}}  settings: {', '.join(_settings(spec))}"]
    head = click.style("What can be prepared", bold=True)
    hint = "`recipe prepare DATASET inputs=FILES output=FOLDER setting=value ...` makes it."
    return "\n".join([head, *(lines or ["  nothing: no plugin prepares data"]), "", hint])


def _settings_of(datasets: Mapping[str, Dataset], arguments: Sequence[str]) -> str:
    name = next((argument for argument in arguments if "=" not in argument), "")
    if name == parts.MERGE:
        return parts.USAGE
    if name not in datasets:
        return f"`recipe prepare NAME --help` explains the settings of one: {', '.join(datasets) or 'none'}"
    title = click.style(f"Settings of {name}", bold=True)
    part = f"\n{parts.DESCRIPTION}" if datasets[name].prepare_part else ""
    return f"{title} (setting=default):\n{describe_class(datasets[name].prepare_config)}{part}"


def _prepare(datasets: Mapping[str, Dataset], arguments: Sequence[str]) -> str:
    """Prepare a data set; return a summary of its manifest."""
    from recipe_core.settings.fill import from_words

    names = [argument for argument in arguments if "=" not in argument]
    if len(names) != 1:
        known = ", ".join(datasets) or "none"
        got = f", got {' and '.join(map(repr, names))}" if names else ""
        raise click.UsageError(f"expected one data set ({known}){got}; a setting is written setting=value")
    name = names[0]
    if name not in datasets:
        hint = did_you_mean(name, datasets)
        raise PluginError(f"nothing named {name!r} can be prepared{hint} (there are: {', '.join(datasets) or 'none'})")
    spec = datasets[name]
    overrides = [argument for argument in arguments if "=" in argument]
    part, overrides = parts.part_of(spec, overrides)
    settings: Any = from_words(spec.prepare_config, spec.name, overrides, "output=data/wiki")
    target, given = (spec.prepare, (settings,)) if part is None else (spec.prepare_part, (settings, part))
    manifest = parts.called(target, spec, *given)
    return _summary(manifest, str(getattr(settings, "output", "")))


def _summary(manifest: Mapping[str, Any], where: str) -> str:
    facts = {**manifest.get("counts", {}), **{k: v for k, v in manifest.items() if isinstance(v, (int, str))}}
    rows = [(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else value) for key, value in _flat(facts)]
    return _table([*rows, ("written to", where)] if where else rows)


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values, nested ones included, without zeros and empty values."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} ")
        elif value and not isinstance(value, (bool, list)):
            yield before + name, value


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
    known = {name: spec for name, spec in _datasets(registry).items() if spec.files}
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
    blocks = [f"{click.style(str(path), bold=True)}: {inspection.kind}", _table(inspection.facts)]
    if inspection.lengths:
        blocks.append(_histogram(inspection.lengths))
    if inspection.example is not None:
        blocks.append(f"{click.style('An example', bold=True)}\n\n{inspection.example}")
    return "\n\n".join(blocks)


def _table(rows: Sequence[tuple[str, str]]) -> str:
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
