"""Data wrappers: filters and changes around another plugin's dataset. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from recipe_core.errors import PluginError
from recipe_core.hooks.facts import DataFacts
from recipe_core.hooks.specs import Dataset, Part, Spec
from recipe_core.hooks.target import call, called

WRAPPERS = "wrappers"
"""The key of a dataset's section that lists its wrappers, from the inside out."""
_PARTS = "datasets"


@dataclass(frozen=True, kw_only=True)
class DataWrapperSpec(Spec):
    """``build(config, samples, run) -> Samples``: samples around those of any dataset.

    ``run`` is a :class:`recipe_core.WrapperRun`. Its methods ``filtered`` and ``mapped`` make of a function of a batch
    samples that depend on the seed and their number alone; ``build`` returns one of them, or samples of its own that
    keep this promise.
    """

    build: str = field(metadata=called("config", "samples", "run"))
    takes: tuple[str, ...] = ()
    """Names of the tensors that it needs; a dataset that gives others is refused before the run."""
    gives: tuple[str, ...] = ()
    """Names of the tensors that it adds."""
    drops: tuple[str, ...] = ()
    """Names of the tensors that it removes."""
    filters: bool = False
    """It leaves samples out: the number of different samples is then unknown."""
    facts: str = field(default="", metadata=called("config", "facts"))
    """``package.module:function(config, facts) -> DataFacts``, without torch: the :class:`recipe_core.DataFacts` of the
    wrapped samples from those of the samples below; it may add problems. Empty: the same."""


def dataset_parts() -> Any:
    """Declare a setting that holds datasets by name, for a dataset made of others: ``data.parts.NAME.use=DATASET``.

    A value from the command line or a file is a section of settings for each name, as the section ``data`` is;
    the functions of the dataset get a :class:`recipe_core.Part` for each name.
    """
    return field(default_factory=dict, metadata={_PARTS: True, "remote": True})


def part_settings(config: type) -> list[str]:
    """Return the settings that :func:`dataset_parts` declares."""
    return [setting.name for setting in fields(config) if setting.metadata.get(_PARTS)]


def nested(part: Part[Any]) -> Iterator[Part[Any]]:
    """Yield a part, its wrappers, and those of the datasets that its settings hold."""
    yield part
    yield from part.wrappers
    for name in part_settings(type(part.config)):
        for value in getattr(part.config, name).values():
            if isinstance(value, Part):
                yield from nested(value)


def gives(data: Part[Dataset]) -> tuple[str, ...]:
    """Return the names of the tensors that every micro batch has, with the wrappers; empty: not known."""
    names = data.spec.gives
    for wrapper in data.wrappers if names else ():
        names = after(names, wrapper.spec)
    return names


def after(names: tuple[str, ...], spec: DataWrapperSpec) -> tuple[str, ...]:
    """Return the names of the tensors once a wrapper has added and removed its own."""
    return tuple(dict.fromkeys([*(name for name in names if name not in spec.drops), *spec.gives]))


def outermost(data: Part[Dataset]) -> Spec:
    """Return the spec whose code returns the samples that a run reads: the last wrapper's, or the dataset's."""
    spec: Spec = data.wrappers[-1].spec if data.wrappers else data.spec
    return spec


def wrapped_facts(data: Part[Dataset], facts: DataFacts) -> DataFacts:
    """Return the facts of a dataset with its wrappers from those without."""
    for part in data.wrappers:
        spec: DataWrapperSpec = part.spec
        if spec.filters:
            facts = replace(facts, train_samples=None, valid_samples=None)
        if spec.facts:
            owner = f"data wrapper {spec.name!r}"
            facts = call(spec.facts, owner, part.config, facts)
            if not isinstance(facts, DataFacts):
                raise PluginError(f"{owner}: {spec.facts!r} returned {facts!r:.60}; expected a DataFacts")
    return facts


def wrapper_text(data: Part[Dataset], plain: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the wrappers with their settings as one text, for the identity of the data."""
    return ", ".join(
        f"{name}({', '.join(f'{key}={value}' for key, value in plain[name].items())})"
        for name in (part.spec.name for part in data.wrappers)
    )
