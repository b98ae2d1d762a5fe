"""Parts of a job: contributions of plugins with checked settings, from the sections of a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.kinds import NOUNS, ListedKind, PartKind
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import Dataset, EngineSpec, Part
from recipe_core.hooks.specs.loop import OptimizerSpec, ScheduleSpec
from recipe_core.hooks.specs.wrapper import WRAPPERS, gives, nested, part_settings
from recipe_core.hooks.target import call
from recipe_core.hooks.train import Train
from recipe_core.settings import fill

AUTO, NATIVE = "auto", "native"
"""``engine=auto`` is the engine that claims the machine, else the core's own."""
_BUCKET = "bucket_mb"
MOVED = ("engine", _BUCKET)
"""The setting ``train.bucket_mb`` of earlier versions, which is the engine's now."""


def part(
    registry: Registry, kind: PartKind, section: Mapping[str, Any], problems: list[str], near: str = "",
    wrapper: Mapping[str, Any] | None = None, where: str = "",
) -> Part[Any] | None:  # fmt: skip
    """Return the contribution that a section names (``use``), with its settings; mistakes are added to ``problems``.

    Args:
        registry: of the contributions.
        kind: of the part.
        section: its settings.
        problems: takes the mistakes.
        near: the plugin of the recipe, see :meth:`Registry.get`.
        wrapper: the section ``wrapper``, for a dataset.
        where: the path of the section, if it is within another one.
    """
    where = where or kind
    if not isinstance(section.get("use"), str):
        problems.append(f"{where}: expected a line `use: NAME`")
        return None
    settings = dict(section)
    name = settings.pop("use")
    wrappers = settings.pop(WRAPPERS, None) if kind == "data" else None
    try:
        spec = registry.get(kind, name, near)
    except PluginError as error:
        problems.append(f"{where}: {error}{_install_advice(registry, name) if kind == 'engine' else ''}")
        return None
    filled = fill.fill(spec.config, settings, where, problems)
    if kind != "data" or not isinstance(spec, Dataset):
        return None if filled is None else Part(spec, filled)
    around = _wrappers(registry, wrappers, wrapper or {}, where, problems, near)
    if filled is None or around is None or not (names := part_settings(spec.config)):
        return None if filled is None or around is None else Part(spec, filled, around)
    inner: dict[str, dict[str, Part[Any]]] = {setting: {} for setting in names}
    for setting, name, value in ((one, name, value) for one in names for name, value in getattr(filled, one).items()):
        path = f"{where}.{setting}.{name}"
        if not isinstance(value, Mapping):
            problems.append(f"{path}: expected the settings of a dataset, got {value!r}; write `{path}.use=DATASET`")
        elif within := part(registry, kind, value, problems, near, wrapper, path):
            inner[setting][name] = within
    if any(len(inner[setting]) < len(getattr(filled, setting)) for setting in names):
        return None
    return Part(
        _of_parts(spec, [one for parts in inner.values() for one in parts.values()]), replace(filled, **inner), around
    )


def _wrappers(
    registry: Registry, names: object, sections: Mapping[str, Any], where: str, problems: list[str], near: str
) -> tuple[Part[Any], ...] | None:
    """The data wrappers that the section of a dataset lists; None if one of them is wrong."""
    listed = fill.fill(_Listed, {WRAPPERS: names if names is not None else []}, where, problems)
    parts: list[Part[Any]] = []
    for name in dict.fromkeys(listed.wrappers if listed else ()):
        try:
            spec = registry.get("wrapper", name, near)
        except PluginError as error:
            problems.append(f"{where}.{WRAPPERS}: {error}")
            continue
        filled = fill.fill(spec.config, sections.get(name) or {}, f"wrapper.{name}", problems)
        parts += [] if filled is None else [Part(spec, filled)]
    return tuple(parts) if listed and len(parts) == len(set(listed.wrappers)) else None


def _of_parts(spec: Dataset, parts: Sequence[Part[Any]]) -> Dataset:
    """The spec of a dataset made of others: it gives the tensors that all of them give, if all say which."""
    given = [gives(one) for one in parts]
    if spec.gives or not given:
        return spec
    return replace(spec, gives=tuple(name for name in given[0] if all(name in names for names in given)))


def unused_wrappers(data: Part[Any] | None, sections: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each data wrapper with settings that no dataset lists."""
    used = [one.spec.name for one in nested(data)] if data is not None else list(sections)
    for name, settings in sections.items():
        if settings and name not in used:
            names = ",".join((*(one.spec.name for one in data.wrappers), name)) if data is not None else name
            yield f"wrapper.{name}: this data wrapper is not used; add it: data.{WRAPPERS}={names}"


def listed_wrappers(section: object) -> list[str]:
    """Return the names of all data wrappers that a section ``data`` lists, also within it."""
    if not isinstance(section, Mapping):
        return []
    own = section.get(WRAPPERS)
    names = own.split(",") if isinstance(own, str) else own if isinstance(own, list | tuple) else ()
    return [*map(str, names), *(name for value in section.values() for name in listed_wrappers(value))]


@dataclass(frozen=True)
class _Listed:
    wrappers: tuple[str, ...] = ()


def engine_section(registry: Registry, merged: Mapping[str, dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    """Return the section ``engine`` with ``auto`` replaced by the name of this machine's engine.

    ``train.bucket_mb``, from files of earlier versions, is passed to an engine that has such a setting.
    """
    section, bucket = dict(merged["engine"]), merged["train"].pop(_BUCKET, None)
    specs = [registration.item for registration in registry.registrations["engine"].values()]
    engines = {spec.name: spec for spec in specs if isinstance(spec, EngineSpec)}
    if section["use"] == AUTO:
        device = str(merged["train"].get("device", AUTO))
        claimed = [name for name, spec in engines.items() if spec.claims and _claims(spec, device)]
        if len(claimed) > 1:
            problems.append(f"engine: {' and '.join(claimed)} all claim this machine; name one: engine={claimed[0]}")
        section["use"] = claimed[0] if claimed else NATIVE
    taken = engines.get(str(section["use"]))
    if bucket is not None and taken is not None and _BUCKET in [field.name for field in fields(taken.config)]:
        section.setdefault(_BUCKET, bucket)
    return section


def take_train_settings(registry: Registry, kind: PartKind, section: dict[str, Any], near: str = "") -> dict[str, Any]:
    """Remove the settings of ``train`` that an optimizer or schedule uses from its own section, and return them."""
    try:
        spec = registry.get(kind, str(section["use"]), near)
    except PluginError:  # reported with the part itself
        return {}
    if not isinstance(spec, OptimizerSpec | ScheduleSpec):
        return {}
    own = [field.name for field in fields(spec.config)]
    return {name: section.pop(name) for name in spec.uses if name in section and name not in own}


def unused(registry: Registry, spec: OptimizerSpec, train: Train) -> Iterator[str]:
    """Yield a problem for each setting that the optimizer would silently ignore."""
    specs = [registration.item for registration in registry.registrations["optimizer"].values()]
    for name in ("optimizer_states", "stochastic_rounding", "trust_clip"):
        if name not in spec.uses and getattr(train, name) != getattr(Train, name):
            able = ", ".join(other.name for other in specs if isinstance(other, OptimizerSpec) and name in other.uses)
            yield f"train.{name}: optimizer={spec.name} does not take it (those that do: {able or 'none'})"


def listed_parts(
    registry: Registry, kind: ListedKind, sections: Mapping[str, Any], train: Train | None, problems: list[str],
    near: str = "",
) -> Iterator[Part[Any]]:  # fmt: skip
    """Yield the trackers, callbacks, transforms or evaluations that ``train`` names, with their settings."""
    setting = f"{kind}s"
    names = getattr(train, setting, ())
    for name in dict.fromkeys(names):
        try:
            spec = registry.get(kind, name, near)
        except PluginError as error:
            problems.append(f"train.{setting}: {error}")
            continue
        settings = sections.get(name) or {}
        filled = fill.fill(spec.config, settings, f"{kind}.{name}", problems)
        if filled is not None:
            yield Part(spec, filled)
    for name, settings in sections.items():
        if train is not None and settings and name not in names:
            used = ",".join((*names, name))
            problems.append(f"{kind}.{name}: this {NOUNS[kind]} is not used; add it: train.{setting}={used}")


def _claims(spec: EngineSpec, device: str) -> bool:
    """True if this is the engine of the machine; an engine that fails to answer is left out, with a warning."""
    try:
        return bool(call(spec.claims, f"engine {spec.name!r}", device))
    except PluginError as error:
        print(f"recipe: engine=auto leaves engine {spec.name!r} out: {error}", file=sys.stderr)
        return False


def changed(part: Part[Any]) -> dict[str, Any]:
    """Return the settings of ``part`` that differ from the defaults."""
    defaults: dict[str, Any] = fill.plain(part.spec.config())
    return {name: value for name, value in fill.plain(part.config).items() if value != defaults[name]}


def _install_advice(registry: Registry, name: str) -> str:
    known = registry.names("engine")
    if name in known or did_you_mean(name, known):
        return ""
    return f"; install the plugin that has it (pip install recipe-{name}), or take engine={NATIVE}"
