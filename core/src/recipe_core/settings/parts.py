"""Sections of settings turned into parts: contributions that plugins registered, with checked settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.loop_specs import OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.registry import PartKind, Registry
from recipe_core.hooks.specs import EngineSpec, Part
from recipe_core.hooks.target import call
from recipe_core.hooks.train import Train
from recipe_core.settings import fill

AUTO, NATIVE = "auto", "native"
"""``engine=auto``: the engine that claims the machine, else the core's own."""
_BUCKET = "bucket_mb"
MOVED = ("engine", _BUCKET)
"""Settings that the section ``train`` had, and files of earlier versions have there: they are the engine's."""


def part(registry: Registry, kind: PartKind, section: Mapping[str, Any], problems: list[str]) -> Part[Any] | None:
    """Return the contribution that a section names (``use``), with its settings; ``problems`` collects mistakes."""
    if not isinstance(section.get("use"), str):
        problems.append(f"{kind}: expected a line `use: NAME`")
        return None
    settings = dict(section)
    name = settings.pop("use")
    try:
        spec = registry.get(kind, name)
    except PluginError as error:
        problems.append(f"{kind}: {error}{_plugin_of(registry, name) if kind == 'engine' else ''}")
        return None
    filled = fill.fill(spec.config, settings, kind, problems)
    return None if filled is None else Part(spec, filled)


def engine_section(registry: Registry, merged: Mapping[str, dict[str, Any]], problems: list[str]) -> dict[str, Any]:
    """The section ``engine`` with the name of this machine's engine in the place of ``auto``.

    ``train.bucket_mb``, where it stood in files of earlier versions, goes to an engine that has such a setting.
    """
    section, bucket = dict(merged["engine"]), merged["train"].pop(_BUCKET, None)
    specs = [claim.item for claim in registry.claims["engine"].values()]
    engines = {spec.name: spec for spec in specs if isinstance(spec, EngineSpec)}
    if section["use"] == AUTO:
        device = str(merged["train"].get("device", AUTO))
        claimed = [name for name, spec in engines.items() if spec.claims and _claims(spec, device)]
        if len(claimed) > 1:
            problems.append(f"engine: {' and '.join(claimed)} all claim this machine; name one: engine={claimed[0]}")
        section["use"] = claimed[0] if claimed else NATIVE
    taken = engines.get(str(section["use"]))
    if bucket is not None and taken is not None and _BUCKET in [one.name for one in fields(taken.config)]:
        section.setdefault(_BUCKET, bucket)
    return section


def lend(registry: Registry, kind: PartKind, section: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of the section ``train`` that stand in the section of a part which uses them out of it."""
    try:
        spec = registry.get(kind, str(section["use"]))
    except PluginError:  # which the part itself tells
        return {}
    if not isinstance(spec, OptimizerSpec | ScheduleSpec):
        return {}
    own = [one.name for one in fields(spec.config)]
    return {name: section.pop(name) for name in spec.uses if name in section and name not in own}


def unused(registry: Registry, spec: OptimizerSpec, train: Train) -> Iterator[str]:
    """A problem for each demand on the optimizer that it would pass over in silence."""
    specs = [claim.item for claim in registry.claims["optimizer"].values()]
    for name in ("optimizer_states", "stochastic_rounding", "trust_clip"):
        if name not in spec.uses and getattr(train, name) != getattr(Train, name):
            able = ", ".join(one.name for one in specs if isinstance(one, OptimizerSpec) and name in one.uses)
            yield f"train.{name}: optimizer={spec.name} does not take it (those that do: {able or 'none'})"


def tracker_parts(
    registry: Registry, sections: Mapping[str, Any], train: Train | None, problems: list[str]
) -> Iterator[Part[TrackerSpec]]:
    """The trackers that ``train`` names, each with its settings."""
    names = train.trackers if train is not None else ()
    for name in dict.fromkeys(names):
        try:
            spec = registry.get("tracker", name)
        except PluginError as error:
            problems.append(f"train.trackers: {error}")
            continue
        settings = sections.get(name) or {}
        filled = fill.fill(spec.config, settings, f"tracker.{name}", problems)
        if filled is not None:
            yield Part(spec, filled)
    for name, settings in sections.items():
        if train is not None and settings and name not in names:
            listed = ",".join((*names, name))
            problems.append(f"tracker.{name}: this tracker is not used; add it: train.trackers={listed}")


def _claims(spec: EngineSpec, device: str) -> bool:
    """True if this is the engine of the machine; one that cannot tell stops no recipe, and is said to be left out."""
    try:
        return bool(call(spec.claims, f"engine {spec.name!r}", device))
    except PluginError as error:
        print(f"recipe: engine=auto leaves engine {spec.name!r} out: {error}", file=sys.stderr)
        return False


def changed(part: Part[Any]) -> dict[str, Any]:
    """The settings of ``part`` that are not the default."""
    usual: dict[str, Any] = fill.plain(part.spec.config())
    return {name: value for name, value in fill.plain(part.config).items() if value != usual[name]}


def _plugin_of(registry: Registry, name: str) -> str:
    """The way out where an engine is unknown and no known one has a similar name."""
    known = registry.names("engine")
    if name in known or did_you_mean(name, known):
        return ""
    return f"; install the plugin that has it (pip install recipe-{name}), or take engine={NATIVE}"
