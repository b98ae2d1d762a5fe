"""Descriptions of settings in the terminal: ``recipe show NAME --describe``, ``recipe prepare NAME --help``."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from recipe_core.errors import ConfigError, RecipeError, did_you_mean

if TYPE_CHECKING:
    from recipe_core.hooks.registry import Registry
    from recipe_core.settings.describe import Setting
    from recipe_core.settings.job import Job

ALL = "all"
"""The value of ``--describe`` if none is given."""
_WIDEST = 100


class DescribedCommand(click.Command):
    """A command whose --help also describes the recipe or data set on the line."""

    details: Callable[[Sequence[str]], str] | None = None
    """Returns the further help text for the arguments of the line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments for the help text, which click prints before it parses them."""
        ctx.meta["arguments"] = [argument for argument in args if not argument.startswith("-")]
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the further help text."""
        super().format_epilog(ctx, formatter)
        if self.details is None:
            return
        try:
            text = self.details(ctx.meta.get("arguments", ()))
        except RecipeError as error:  # a mistake in the line does not prevent the help text
            text = str(error)
        if text:
            formatter.write(f"\n{text}\n")


def describe_job(registry: Registry, job: Job, section: str) -> str:
    """Describe settings of ``job`` with type, value and meaning: all, a section, or one (``train.lr``).

    Raises:
        ConfigError: there is no such section or setting.
    """
    sections = dict(_sections(registry, job))
    if section == ALL:
        return "\n\n".join(_block(name, *sections[name]) for name in sections)
    name, wanted = (section, "") if section in sections else section.rpartition(".")[::2]
    name, wanted = (name, wanted) if name else (section, "")
    if name not in sections:
        paths = [f"{path}.{setting.name}" for path, (_, settings) in sections.items() for setting in settings]
        same = [path for path in paths if path.rpartition(".")[2] == name]
        hint = f"; did you mean {' or '.join(same)}?" if same else did_you_mean(name, sections)
        raise ConfigError(f"--describe: {job.name} has no section {name!r}{hint} (sections: {', '.join(sections)})")
    head, settings = sections[name]
    if not wanted:
        return _block(name, head, settings)
    known = [setting.name for setting in settings]
    if wanted not in known:
        hint = did_you_mean(wanted, known)
        raise ConfigError(f"--describe: {name} has no setting {wanted!r}{hint} (settings: {', '.join(known)})")
    return "\n".join(_lines(name, [setting for setting in settings if setting.name == wanted]))


def _sections(registry: Registry, job: Job) -> Iterator[tuple[str, tuple[str, list[Setting]]]]:
    from recipe_core.hooks.kinds import PARTS
    from recipe_core.hooks.specs.wrapper import DataWrapperSpec, nested
    from recipe_core.settings.describe import described
    from recipe_core.settings.fill import plain
    from recipe_core.settings.sections import LISTED

    for kind in PARTS:
        part = getattr(job, kind)
        others = ", ".join(name for name in registry.names(kind) if name != part.spec.name)
        head = f"{kind}={part.spec.name}: {part.spec.summary}" + (f" (others: {others})" if others else "")
        yield kind, (head, described(type(part.config), plain(part.config)))
    head = "train: how long and how hard to train; every recipe has this section"
    yield "train", (head, described(type(job.train), plain(job.train)))
    wrappers = [part for part in nested(job.data) if isinstance(part.spec, DataWrapperSpec)]
    of_train = [(kind, getattr(job, f"{kind}s")) for kind in LISTED]
    for section, listed in (*of_train, ("wrapper", wrappers)):
        for part in listed:
            settings = described(type(part.config), plain(part.config))
            yield f"{section}.{part.spec.name}", (f"{section} {part.spec.name}: {part.spec.summary}", settings)


def describe_class(settings: type) -> str:
    """Describe the settings of a class with type, default and meaning, without a section."""
    from recipe_core.settings.describe import defaults, described

    return "\n".join(_lines("", described(settings, defaults(settings))))


def summary_of(job: Job) -> str:
    """List the names of all settings of ``job``, a paragraph for each section, for ``recipe run NAME --help``."""
    lines = [
        click.style(f"Settings of {job.name}", bold=True) + f" (`recipe show {job.name} --describe` explains them):"
    ]
    for name, part in _classes(job).items():
        if names := [field.name for field in dataclasses.fields(part) if field.init]:
            lines += _wrapped(f"{name}.SETTING: {', '.join(names)}", 2, 4)
    return "\n".join(lines)


def _classes(job: Job) -> Mapping[str, Any]:
    from recipe_core.hooks.kinds import PARTS

    return {**{kind: type(getattr(job, kind).config) for kind in PARTS}, "train": type(job.train)}


def _block(section: str, head: str, settings: Sequence[Setting]) -> str:
    title = "\n".join(_wrapped(head, 0, 2))
    return "\n".join([click.style(title, bold=True), *(_lines(section, settings) or ["  It has no settings."])])


def _lines(section: str, settings: Sequence[Setting]) -> list[str]:
    lines = []
    for setting in settings:
        path = f"{section}.{setting.name}" if section else setting.name
        lines.append(f"  {click.style(f'{path}={setting.value}', fg='cyan')}  ({setting.kind})")
        lines += _wrapped(setting.meaning, 6, 6)
    return lines


def _wrapped(text: str, first: int, rest: int) -> list[str]:
    width = min(_WIDEST, shutil.get_terminal_size().columns)
    return textwrap.wrap(
        text, width, initial_indent=" " * first, subsequent_indent=" " * rest, break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip
