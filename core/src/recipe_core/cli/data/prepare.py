"""The command ``recipe prepare``. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recipe_core.cli.commands.describe import DescribedCommand, describe_class
from recipe_core.cli.data import executors, parts, stored
from recipe_core.cli.data.files import datasets_of, table
from recipe_core.cli.options import LocalPath, debug_option, load_plugins
from recipe_core.errors import ConfigError, PluginError, RecipeError, did_you_mean
from recipe_core.files.objects import is_address

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import Registry
    from recipe_core.hooks.specs import Dataset


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


def _complete_executor(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from recipe_core.hooks.registry import load

    return [CompletionItem(name) for name in load().names("executor") if name.startswith(incomplete)]


def _settings(spec: Dataset) -> list[str]:
    from recipe_core.settings.values import kinds

    return [*kinds(spec.prepare_config), *([parts.PART] if spec.prepare_part else [])]


@click.command(cls=_PrepareCommand)
@click.argument("arguments", nargs=-1, metavar="[DATASET] [SETTING=VALUE]...", shell_complete=_complete)
@click.option(
    "--on",
    metavar="EXECUTOR[:ADDRESS]",
    shell_complete=_complete_executor,
    help="Make the data set in parts, which run there: local[:PROCESSES], slurm, or a plugin's.",
)
@click.option("--parts", "count", type=click.IntRange(min=1), metavar="N", help="The number of parts for --on.")
@click.option("--site", type=LocalPath(), metavar="FILE", help="The site profile for --on (default: RECIPE_SITE).")
@click.option("--progress", type=LocalPath(), hidden=True)  # of a part, for the command that started it
@debug_option
def prepare(
    arguments: tuple[str, ...], on: str | None, count: int | None, site: Path | None, progress: Path | None
) -> None:
    """Make a data set from text or dumps.

    An interrupted run continues where it was when the same command is given again. Without a name, what can be
    prepared is listed.

    With --on and --parts, parts are made side by side on this machine or others, and joined; parts that were lost start
    again. With part=K/N, part K of N is made, on any machine; `recipe prepare merge OUTPUT PARTS...` joins all parts.
    """
    if progress is not None:
        _be_a_part(progress)
    placement = executors.Placement.parse(on, count, site)
    datasets = _preparable(load_plugins())
    if not arguments or arguments[0] == parts.MERGE:
        if placement is not None:
            raise ConfigError(
                "--on: goes with a data set, as in recipe prepare DATASET output=FOLDER --on local --parts 4"
            )
        click.echo(_summary(*_merged(datasets, arguments[1:])) if arguments else _listing(datasets))
    else:
        click.echo(_prepare(datasets, arguments, placement))


def _merged(datasets: Mapping[str, Dataset], arguments: Sequence[str]) -> stored.Made:
    if not arguments or not is_address(arguments[0]):
        return parts.merge(datasets, arguments)
    folders = arguments[1:]
    return stored.make_stored(
        arguments[0], [parts.MERGE, *folders], lambda folder: parts.merge(datasets, [folder, *folders])
    )


def _be_a_part(progress: Path) -> None:
    """End with the process that started this one, and report the progress to it."""
    from recipe_core.data.prepare.progress import report_to
    from recipe_core.launch.worker import die_with_parent

    die_with_parent()
    report_to(progress)


prepare.details = lambda arguments: _settings_of(_preparable(load_plugins()), arguments)


def _preparable(registry: Registry) -> dict[str, Dataset]:
    return {name: spec for name, spec in datasets_of(registry).items() if spec.prepare}


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


def _prepare(datasets: Mapping[str, Dataset], arguments: Sequence[str], placement: executors.Placement | None) -> str:
    """Prepare a data set; return a summary of its manifest."""
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
    if not (address := stored.address_in(overrides)):
        return _summary(*_made(datasets, spec, overrides, placement))
    words = [word for word in overrides if not word.startswith("output=")]
    return _summary(
        *stored.make_stored(
            address,
            [name, *(word for word in words if not word.startswith("overwrite="))],
            lambda folder: _made(datasets, spec, [*words, f"output={folder}"], placement),
            overwrite=stored.overwrites(words),
        )
    )


def _made(
    datasets: Mapping[str, Dataset], spec: Dataset, overrides: Sequence[str], placement: executors.Placement | None
) -> stored.Made:
    """Prepare a data set in a folder of this machine."""
    from recipe_core.settings.fill import from_words

    if placement is not None:
        return executors.make(load_plugins(), datasets, spec, overrides, placement)
    part, overrides = parts.part_of(spec, overrides)
    settings: Any = from_words(spec.prepare_config, spec.name, overrides, "output=data/wiki")
    target, given = (spec.prepare, (settings,)) if part is None else (spec.prepare_part, (settings, part))
    manifest = parts.called(target, spec, *given)
    return manifest, str(getattr(settings, "output", ""))


def _summary(manifest: Mapping[str, Any], where: str) -> str:
    from recipe_core.data.filters.counts import filter_rows

    facts = {**manifest.get("counts", {}), **{k: v for k, v in manifest.items() if isinstance(v, (int, str))}}
    rows = [(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else value) for key, value in _flat(facts)]
    rows += filter_rows(manifest)
    return table([*rows, ("written to", where)] if where else rows)


def _flat(facts: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values, nested ones included, without zeros and empty values."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name} ")
        elif value and not isinstance(value, (bool, list)):
            yield before + name, value
