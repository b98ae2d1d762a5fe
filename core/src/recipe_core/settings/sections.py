"""The sections of a job: those of a recipe, its variants, files and overrides, before any name is looked up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipe_core.errors import ConfigError, PluginError, did_you_mean
from recipe_core.hooks.kinds import NOUNS, PARTS, ListedKind, PartKind
from recipe_core.hooks.specs import Recipe, Use
from recipe_core.hooks.specs.wrapper import WRAPPERS
from recipe_core.settings import fill
from recipe_core.settings.parts import listed_wrappers

LISTED: tuple[ListedKind, ...] = ("tracker", "callback", "transform", "evaluation")
"""Kinds whose section holds a section for each of those that ``train`` lists."""
LISTS = {**{f"{kind}s": "train" for kind in LISTED}, WRAPPERS: "data"}
"""Lists of names that may be given without their section."""
SECTIONS = (*PARTS, *LISTED, "wrapper", "train")
IDENTITY, HISTORY, PLUGINS = "identity", "history", "plugins"
"""Further sections of a run's job.yaml: the identity of its data, settings that changed when it continued, and the
plugin of each part."""
IN_TRAIN: tuple[PartKind, ...] = ("engine", "optimizer", "schedule")
"""Parts that may also be named in the section ``train``: ``train.optimizer=NAME``."""


def split_name(name: str) -> tuple[str, str | None]:
    """Split ``"gpt:tiny"`` into ``("gpt", "tiny")``; without a variant, it is None."""
    recipe, colon, variant = name.partition(":")
    return recipe, variant if colon else None


def plugin_of(kind: str, recorded: object) -> str:
    """Return the plugin of a kind in the section ``plugins`` of a job.yaml; empty if it tells none."""
    entry = recorded.get(kind) if isinstance(recorded, Mapping) else None
    return str(entry).partition(",")[0] if entry else ""


def without_records(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a job.yaml, with names of parts without a plugin: ``gpt`` where several have one."""
    plain = {name: value for name, value in sections.items() if name not in (IDENTITY, HISTORY, PLUGINS)}
    if isinstance(recipe := plain.get("recipe"), str):
        plain["recipe"] = recipe.rpartition("/")[2]
    for name, section in plain.items():
        if isinstance(section, Mapping) and isinstance(use := section.get("use"), str):
            plain[name] = {**section, "use": use.rpartition("/")[2]}
    return plain


def base_sections(recipe: Recipe) -> dict[str, Any]:
    sections: dict[str, Any] = {
        "train": fill.plain(recipe.train), "tracker": fill.plain(recipe.trackers),
        "callback": fill.plain(recipe.callbacks), "transform": fill.plain(recipe.transforms),
        "evaluation": fill.plain(recipe.evaluations), "wrapper": fill.plain(recipe.wrappers),
    }  # fmt: skip
    for kind in PARTS:
        use: Use = getattr(recipe, kind) or Use(sections["train"][kind])
        sections[kind] = {"use": use.name, **fill.plain(use.settings)}
    return sections


def variant_layers(recipe: Recipe, variant: str | None) -> tuple[list[Mapping[str, Any]], int]:
    """Return the layers of a variant and those that it extends, the base first, and the number of processes."""
    processes: list[int] = []
    layers: list[Mapping[str, Any]] = []
    seen: list[str] = []
    while variant is not None:
        if variant in seen:
            raise PluginError(f"{recipe.name}: variants extend each other in a circle: {' -> '.join([*seen, variant])}")
        if variant not in recipe.variants:
            known = ", ".join(recipe.variants) or "none"
            owner = f"{recipe.name}:{seen[-1]} extends {variant!r}, and there is" if seen else f"{recipe.name} has"
            hint = did_you_mean(variant, recipe.variants)
            raise ConfigError(f"{owner} no variant {variant!r}{hint} (variants: {known})")
        seen.append(variant)
        layer = dict(recipe.variants[variant])
        variant = layer.pop("extends", None)
        if "processes" in layer:
            processes.append(_processes(layer.pop("processes"), f"{recipe.name}:{seen[-1]}"))
        layers.insert(0, layer)
    return layers, [*processes, recipe.processes][0]


def _processes(number: object, owner: str) -> int:
    if type(number) is not int or number < 1:
        raise PluginError(f"{owner}: processes: expected a whole number of at least 1, got {number!r}")
    return number


def read_sections(layer: Mapping[str, Any], problems: list[str]) -> dict[str, dict[str, Any]]:
    """Return the sections of a layer, each a mapping: ``layout: ddp`` stands for ``layout: {use: ddp}``.

    ``train.engine`` stands for ``engine.use``, and so on for ``IN_TRAIN``.
    """
    sections: dict[str, dict[str, Any]] = {}
    for name, value in layer.items():
        if message := _list_problem(name, value):
            problems.append(message)
        elif name in LISTS:  # callbacks=ema,early_stopping
            sections.setdefault(LISTS[name], {})[name] = value.get("use") if isinstance(value, Mapping) else value
        elif name not in SECTIONS:
            hint = did_you_mean(str(name), SECTIONS)
            problems.append(f"{name}: no such section{hint} (sections: {', '.join(SECTIONS)})")
        elif isinstance(value, Mapping):
            sections[name] = sections.get(name, {}) | fill.plain(value)
        elif isinstance(value, str) and name not in ("train", "wrapper", *LISTED):
            sections[name] = sections.get(name, {}) | {"use": value}
        elif value is not None:
            problems.append(f"{name}: expected settings ({{name: value}}), got {value!r}")
    for kind in IN_TRAIN:
        if kind in sections.get("train", {}):
            name, section = sections["train"].pop(kind), sections.setdefault(kind, {})
            if section.setdefault("use", name) != name:
                both = f"{name}, {section['use']}"
                problems.append(f"train.{kind}, {kind}: they name two {NOUNS[kind]}s ({both}); give one of them")
    return sections


def _list_problem(name: str, value: object) -> str:
    """A message if settings of one callback are given as the list of callbacks, or the other way round."""
    if isinstance(value, Mapping) and name in LISTS and (others := [key for key in value if key != "use"]):
        return f"{name}.{others[0]}: {name} lists names; write `{name[:-1]}.{others[0]}` for its settings"
    if name in ("wrapper", *LISTED) and (use := value.get("use") if isinstance(value, Mapping) else None):
        return f"{name}: it holds settings; write `{name}s={use}` for the list of names"
    return ""


def without_unlisted(merged: Mapping[str, Any], sections: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """``merged`` without settings of trackers and so on that the next layer's ``sections`` no longer list, and with
    those of ``recipe`` for what they list again."""
    kept, base = dict(merged), base_sections(recipe)
    for kind in LISTED:
        names = sections.get("train", {}).get(f"{kind}s")
        if isinstance(names, str | list | tuple):
            names = names.split(",") if isinstance(names, str) else names
            known = base[kind] | merged[kind]
            kept[kind] = {name: settings for name, settings in known.items() if name in names}
    if "data" in sections:
        after = listed_wrappers(fill.merge(merged, sections)["data"])
        gone = set(listed_wrappers(merged["data"])) - set(after)
        kept["wrapper"] = {name: settings for name, settings in merged["wrapper"].items() if name not in gone}
    return kept


def without_unused_defaults(merged: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Settings of trackers and so on, without those of ``recipe`` itself for what is not used."""
    base = base_sections(recipe)
    used = {kind: merged["train"].get(f"{kind}s") or () for kind in LISTED}
    return {
        kind: {
            name: settings
            for name, settings in merged[kind].items()
            if name in names or settings != base[kind].get(name)
        }
        for kind, names in used.items()
    }
