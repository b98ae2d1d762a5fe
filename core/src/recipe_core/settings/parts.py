"""Parts of a job: contributions of plugins with checked settings, from the sections of a job."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks.kinds import NOUNS, ListedKind, PartKind
from recipe_core.hooks.registry import Registry
from recipe_core.hooks.specs import EngineSpec, Part
from recipe_core.hooks.specs.loop import OptimizerSpec, ScheduleSpec
from recipe_core.hooks.target import call
from recipe_core.hooks.train import Train
from recipe_core.settings import fill

AUTO, NATIVE = "auto", "native"
"""``engine=auto`` is the engine that claims the machine, else the core's own."""
_BUCKET = "bucket_mb"
MOVED = ("engine", _BUCKET)
"""The setting ``train.bucket_mb`` of earlier versions, which is the engine's now."""


def part(
    registry: Registry, kind: PartKind, section: Mapping[str, Any], problems: list[str], near: str = ""
) -> Part[Any] | None:
    """Return the contribution that a section names (``use``), with its settings; mistakes are added to ``problems``.

    ``near``: the plugin of the recipe, see :meth:`Registry.get`.
    """
    if not isinstance(section.get("use"), str):
        problems.append(f"{kind}: expected a line `use: NAME`")
        return None
    settings = dict(section)
    name = settings.pop("use")
    try:
        spec = registry.get(kind, name, near)
    except PluginError as error:
        problems.append(f"{kind}: {error}{_install_advice(registry, name) if kind == 'engine' else ''}")
        return None
    filled = fill.fill(spec.config, settings, kind, problems)
    return None if filled is None else Part(spec, filled)


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
    """Yield the trackers, callbacks or transforms that ``train`` names, with their settings."""
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
