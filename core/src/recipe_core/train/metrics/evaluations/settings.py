"""Settings and checks of the core's own evaluations. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from recipe_core.errors import ConfigError, RecipeError, did_you_mean
from recipe_core.hooks.specs import Dataset, Model, Part
from recipe_core.hooks.specs.wrapper import part_settings
from recipe_core.hooks.train import Train, too_small
from recipe_core.settings.facts import data_facts
from recipe_core.settings.fill import fill, plain

_FILES = "files"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Settings of the loss on other data."""

    files: tuple[str, ...] = ()
    """Files to read instead of the run's, in place of the dataset's setting ``files``."""
    split: Literal["valid", "train"] = "valid"
    """The split that is read, of the run's dataset or of the one with the settings given here."""
    samples: int = 64
    """Samples, taken from the start of the split."""
    part: str = ""
    """A part of the run's ``mixture``, by its name: that dataset alone is read, with the settings given here."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of the dataset, as in the section ``data``: ``evaluation.held_out.data.sequence=256``."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "samples"):
            raise ValueError("\n".join(problems))

    def settings(self) -> dict[str, Any]:
        """Return the settings of the dataset that replace those of the run."""
        return {**self.data, **({_FILES: list(self.files)} if self.files else {})}


@dataclass(frozen=True, kw_only=True)
class TextFile:
    """Settings of the loss on a text."""

    file: str = ""
    """The text, in UTF-8."""
    most: int = 1_000_000
    """Bytes of it at most, from its beginning."""

    def __post_init__(self) -> None:
        if problems := too_small(self, 1, "most"):
            raise ValueError("\n".join(problems))


def other_dataset(data: Part[Dataset], settings: Mapping[str, Any], part: str = "") -> Part[Dataset]:
    """Return ``data``, or the part of it named ``part``, with other settings.

    Raises:
        ConfigError: there is no such part or setting; one error names all mistakes.
    """
    if part:
        data = _part_of(data, part)
    if not settings:
        return data
    spec: Dataset = data.spec
    known = [one.name for one in fields(spec.config)]
    held = part_settings(spec.config)
    problems = []
    for name in settings:
        if name in held:
            problems.append(f"{name}: it holds the parts of {spec.name}; name one of them instead")
        elif name not in known:
            hint = did_you_mean(name, known)
            inner = f"; to give them to one of its parts, name it ({_names(data)})" if held else ""
            problems.append(f"dataset {spec.name!r} has no setting {name!r}{hint}{inner}")
    if problems:
        raise ConfigError("\n".join(problems))
    filled = fill(spec.config, {**plain(data.config), **settings}, "data", problems)
    if problems or filled is None:
        raise ConfigError("\n".join(problems))
    if held:  # built parts, which plain data does not hold
        filled = replace(filled, **{name: getattr(data.config, name) for name in held})
    return replace(data, config=filled)


def _part_of(data: Part[Dataset], name: str) -> Part[Dataset]:
    parts: dict[str, Part[Dataset]] = {}
    for setting in part_settings(data.spec.config):
        parts |= getattr(data.config, setting)
    if name not in parts:
        there = f"its parts are {', '.join(parts)}{did_you_mean(name, parts)}" if parts else "it has no parts"
        raise ConfigError(f"dataset {data.spec.name!r} has no part {name!r}: {there}")
    return parts[name]


def _names(data: Part[Dataset]) -> str:
    return ", ".join(name for setting in part_settings(data.spec.config) for name in getattr(data.config, setting))


def held_out_problems(
    config: HeldOut, train: Train, model: Part[Model] | None, data: Part[Dataset] | None
) -> Iterator[str]:
    """Yield what keeps a run from reading the data."""
    if data is None:
        return
    try:
        facts = data_facts(other_dataset(data, config.settings(), config.part))
    except RecipeError as error:
        yield from str(error).splitlines()
        return
    yield from facts.problems if facts is not None else ()


def text_problems(
    config: TextFile, train: Train, model: Part[Model] | None, data: Part[Dataset] | None
) -> Iterator[str]:
    """Yield a problem if there is no text."""
    if not config.file:
        yield "file: no text is named; give one: evaluation.text.file=PATH"
    elif not Path(config.file).expanduser().is_file():
        yield f"file: {config.file}: there is no such file; expected a text in UTF-8"
