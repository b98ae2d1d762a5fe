"""Find plugins, ask each what it contributes, and look contributions up by name."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints, overload

import pluggy

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks import hooks
from recipe_core.hooks.launcher import Launcher
from recipe_core.hooks.loop_specs import LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs import (
    CheckpointFormat,
    Dataset,
    EngineSpec,
    Layout,
    LayoutSettings,
    Model,
    Recipe,
    Spec,
    Use,
)
from recipe_core.hooks.version import load_point, require_api

PartKind = Literal["model", "data", "loss", "layout", "checkpoint", "engine", "optimizer", "schedule"]
Kind = Literal["recipe", "launcher", "tracker"] | PartKind
Contribution = Spec | Recipe
Loader = Callable[[], object]

KINDS: dict[Kind, str] = {
    "recipe": "register_recipes",
    "model": "register_models",
    "data": "register_datasets",
    "layout": "register_layouts",
    "checkpoint": "register_checkpoint_formats",
    "engine": "register_engines",
    "launcher": "register_launchers",
    "loss": "register_losses",
    "optimizer": "register_optimizers",
    "schedule": "register_schedules",
    "tracker": "register_trackers",
}
"""Kinds of contributions, by the name that recipes and settings use for them, with the hook that returns them."""
PARTS: tuple[PartKind, ...] = ("model", "data", "loss", "layout", "checkpoint", "engine", "optimizer", "schedule")
"""The kinds that a recipe is composed of; each is a section of settings."""
NOUNS: dict[Kind, str] = {
    "recipe": "recipe",
    "model": "model",
    "data": "dataset",
    "layout": "layout",
    "checkpoint": "checkpoint format",
    "engine": "engine",
    "launcher": "launcher",
    "loss": "loss",
    "optimizer": "optimizer",
    "schedule": "schedule",
    "tracker": "tracker",
}
_CLASSES: dict[Kind, type[Contribution]] = {
    "recipe": Recipe,
    "model": Model,
    "data": Dataset,
    "layout": Layout,
    "checkpoint": CheckpointFormat,
    "engine": EngineSpec,
    "launcher": Launcher,
    "loss": LossSpec,
    "optimizer": OptimizerSpec,
    "schedule": ScheduleSpec,
    "tracker": TrackerSpec,
}
_USE = "use"
_WORDS: dict[type, str] = {str: "a text", tuple: "a tuple", list: "a list", Mapping: "a mapping", Use: "Use(NAME, ...)"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Can be typed without quotes, is a file name, and holds no ``:``, which divides a recipe from its variant."""


CORE = "core"
"""The plugin of the core's own contributions, whose names no other plugin takes over."""


@dataclass(frozen=True)
class Claim:
    """A contribution and the plugin that provides it."""

    owner: str
    item: Contribution


@dataclass
class Registry:
    """Every contribution of every plugin that loaded.

    A contribution goes by its own name. Where several plugins use one name, it is the core's; all others go by
    ``plugin/name``, which is then the name in their specs too, so that settings, job files and checkpoints say which
    one is meant.
    """

    claims: dict[Kind, dict[str, Claim]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """By kind, and the name that it goes by."""
    contested: dict[Kind, dict[str, list[str]]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """Names that several plugins use and the core does not, with those that their contributions go by."""
    plugins: list[str] = field(default_factory=list)
    """The plugins that loaded."""
    broken: dict[str, str] = field(default_factory=dict)
    """The plugins that did not load, and why."""

    @overload
    def get(self, kind: Literal["recipe"], name: str) -> Recipe: ...
    @overload
    def get(self, kind: Literal["launcher"], name: str) -> Launcher: ...
    @overload
    def get(self, kind: Literal["model"], name: str) -> Model: ...
    @overload
    def get(self, kind: Literal["data"], name: str) -> Dataset: ...
    @overload
    def get(self, kind: Literal["layout"], name: str) -> Layout: ...
    @overload
    def get(self, kind: Literal["checkpoint"], name: str) -> CheckpointFormat: ...
    @overload
    def get(self, kind: Literal["tracker"], name: str) -> TrackerSpec: ...
    @overload
    def get(self, kind: PartKind, name: str) -> Spec: ...
    @overload
    def get(self, kind: Kind, name: str) -> Contribution: ...
    def get(self, kind: Kind, name: str) -> Contribution:
        """Return the contribution ``name``, or ``plugin/name``.

        Raises:
            PluginError: nobody contributes it (the plugins that did not load are named), or more than one.
        """
        claim = self._claim(kind, name)
        if claim is not None:
            return claim.item
        raise PluginError(self._conflict(kind, name) if name in self.contested[kind] else self._unknown(kind, name))

    def names(self, kind: Kind) -> list[str]:
        """Return the names that all contributions of a kind go by, sorted."""
        return sorted(self.claims[kind])

    def conflicts(self) -> list[str]:
        """Return a message for every name that several plugins use and the core does not."""
        return [self._conflict(kind, name) for kind in KINDS for name in sorted(self.contested[kind])]

    def shadowed(self) -> list[str]:
        """Return a message for every contribution that has the name of one of the core's."""
        return [
            f"{NOUNS[kind]} {plain!r} is the core's own; that of plugin {claim.owner!r} goes by {name}"
            for kind in KINDS
            for name, claim in sorted(self.claims[kind].items())
            if (plain := name.removeprefix(f"{claim.owner}/")) != name and plain in self.claims[kind]
        ]

    def add(self, contributions: Iterable[tuple[Kind, Claim]]) -> None:
        """Settle the names that contributions go by; call it once, with those of all plugins."""
        claims: dict[tuple[Kind, str], list[Claim]] = {}
        for kind, claim in contributions:
            claims.setdefault((kind, claim.item.name), []).append(claim)
        for (kind, name), rivals in claims.items():
            plain = rivals[0] if len(rivals) == 1 else next((one for one in rivals if one.owner == CORE), None)
            if plain is not None:
                self.claims[kind][name] = plain
            qualified = {f"{one.owner}/{name}": one for one in rivals if one is not plain}
            for reference, one in qualified.items():
                self.claims[kind][reference] = Claim(one.owner, dataclasses.replace(one.item, name=reference))
            if plain is None:
                self.contested[kind][name] = list(qualified)

    def _claim(self, kind: Kind, name: str) -> Claim | None:
        claim = self.claims[kind].get(name)
        owner, slash, plain = name.rpartition("/")
        if claim is None and slash:  # the full name of one that goes by its own
            claim = self.claims[kind].get(plain)
            claim = claim if claim is not None and claim.owner == owner else None
        return claim

    def complaints(self) -> list[str]:
        """Return a message for every plugin that did not load."""
        return [f"plugin {plugin!r} did not load and is left out: {why}" for plugin, why in self.broken.items()]

    def _unknown(self, kind: Kind, name: str) -> str:
        known = self.names(kind)
        text = f"no {NOUNS[kind]} named {name!r}{did_you_mean(name, known)} (there are: {', '.join(known) or 'none'})"
        return "; ".join([text, *self.complaints()])

    def _conflict(self, kind: Kind, name: str) -> str:
        names = self.contested[kind][name]
        owners = " and by ".join(f"plugin {self.claims[kind][one].owner!r}" for one in names)
        return f"{NOUNS[kind]} {name!r} is provided by {owners}; say which one: {' or '.join(names)}"


def load(plugins: Iterable[tuple[str, Loader]] | None = None) -> Registry:
    """Load ``plugins`` (name and loader; default: those installed) and ask every hook of each.

    A plugin that cannot be loaded, or answers a hook with nonsense, is left out as a whole and noted in ``broken``.
    """
    registry, claims = Registry(), list[tuple[Kind, Claim]]()
    for name, loader in installed() if plugins is None else plugins:
        try:
            # `recipe show > FILE` must hold no line that a plugin prints while it is imported.
            with contextlib.redirect_stdout(sys.stderr):
                contributions = list(_contributions(name, loader))
        except (Exception, SystemExit) as error:  # any code may run here, a plugin's mistake is not the user's
            text = " ".join(str(error).split())
            registry.broken[name] = text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
            continue
        registry.plugins.append(name)
        claims += [(kind, Claim(name, item)) for kind, item in contributions]
    registry.add(claims)
    return registry


def installed() -> Iterator[tuple[str, Loader]]:
    """Yield name and loader of the entry points in the group ``recipe.plugins``, the core's first.

    The environment variable ``RECIPE_PLUGINS`` (names, divided by commas) leaves all others out, except the core.
    """
    import importlib.metadata

    points = sorted(
        importlib.metadata.entry_points(group=hooks.GROUP), key=lambda p: (p.value != "recipe_core.plugin", p.name)
    )
    listed = os.environ.get("RECIPE_PLUGINS")
    wanted = None if listed is None else {CORE, *(name.strip() for name in listed.split(",") if name.strip())}
    for number, point in enumerate(points):
        if wanted is None or point.name in wanted:
            twin = point.name in [other.name for other in points[:number]]
            yield point.value if twin else point.name, partial(load_point, point)
    for name in sorted((wanted or set()) - {point.name for point in points}):
        yield name, lambda: _missing([point.name for point in points])


def noun(item: Contribution) -> str:
    """The word for the kind of ``item`` in messages."""
    return next((NOUNS[kind] for kind, class_ in _CLASSES.items() if isinstance(item, class_)), type(item).__name__)


def distributions() -> dict[str, str]:
    """Map the installed plugins to their distributions: ``{"core": "recipe-core 0.1.0"}``."""
    import importlib.metadata

    points = importlib.metadata.entry_points(group=hooks.GROUP)
    return {point.name: f"{point.dist.name} {point.dist.version}" for point in points if point.dist is not None}


def _missing(known: list[str]) -> object:
    raise PluginError(f"RECIPE_PLUGINS names it, and it is not installed (installed: {', '.join(known) or 'none'})")


def _contributions(name: str, loader: Loader) -> Iterator[tuple[Kind, Contribution]]:
    """Yield all contributions of one plugin.

    Each plugin is registered with a manager of its own, so that one's mistake is never taken for another's.
    """
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    plugin = loader()
    require_api(getattr(plugin, "API", 1))
    manager.register(plugin, name)
    _refuse_unknown_hooks(manager)
    if not manager.get_hookcallers(plugin):
        raise PluginError("it implements no hook; is @hookimpl missing above register_...?")
    for kind, hook in KINDS.items():
        names: set[str] = set()
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            answer = implementation.function()
            if not isinstance(answer, Iterable):
                raise PluginError(f"{hook} gave back {answer!r}; expected an iterable of {_CLASSES[kind].__name__}")
            for item in answer:
                yield kind, _checked(item, kind, hook)
                if item.name in names:
                    raise PluginError(f"{hook} gave back two named {item.name!r}")
                names.add(item.name)


def _refuse_unknown_hooks(manager: pluggy.PluginManager) -> None:
    for hook, caller in vars(manager.hook).items():
        if not hook.startswith("_") and not caller.has_spec():
            raise PluginError(f"there is no hook {hook!r}{did_you_mean(hook, KINDS.values())}")


def _checked(item: object, kind: Kind, hook: str) -> Contribution:
    """Return ``item``, if it is of the class that the hook must return."""
    if not isinstance(item, _CLASSES[kind]):
        raise PluginError(f"{hook} gave back {item!r}; expected a {_CLASSES[kind].__name__}")
    if not isinstance(item.name, str) or not _NAME.fullmatch(item.name):
        raise PluginError(f"{hook}: the name {item.name!r} holds more than letters, digits, '_', '-' and '.'")
    _refuse_values(item, hook)
    if isinstance(item, Spec) and not _is_settings_class(item.config):
        raise PluginError(f"{hook}: config of {item.name!r} is not a frozen dataclass: {item.config!r}")
    if isinstance(item, Layout) and not issubclass(item.config, LayoutSettings):
        raise PluginError(f"{hook}: config of {item.name!r} is no subclass of LayoutSettings: {item.config!r}")
    if isinstance(item, Spec) and _USE in [one.name for one in dataclasses.fields(item.config)]:
        raise PluginError(
            f"{hook}: a setting of {item.name!r} is named {_USE!r}, the word that names the part itself; choose "
            "another name"
        )
    return item


def _refuse_values(item: Contribution, hook: str) -> None:
    """Refuse values of another kind than the fields of the spec declare, which would fail in some later command."""
    for name, declared in _declared(type(item)).items():  # type: ignore[arg-type]  # a class can be hashed
        value = getattr(item, name)
        if not isinstance(value, declared):
            words = " or ".join(_WORDS.get(one, one.__name__) for one in declared)
            raise PluginError(f"{hook}: {name} of {item.name!r} is {value!r:.60}; expected {words}")
        if isinstance(value, Use) and _USE in value.settings:
            raise PluginError(f"{hook}: {name} of {item.name!r} sets {_USE!r}, the word that names the part itself")


@lru_cache
def _declared(spec: Any) -> dict[str, tuple[type, ...]]:
    """The classes that a value of each field may have; fields that may be anything are left out."""
    kinds: dict[str, tuple[type, ...]] = {}
    for name, hint in get_type_hints(spec).items():
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        classes = tuple(get_origin(option) or option for option in options)
        if get_origin(hint) is not ClassVar and all(isinstance(one, type) for one in classes):
            kinds[name] = (*classes, list) if tuple in classes else classes
    return kinds


def _is_settings_class(config: object) -> bool:
    return isinstance(config, type) and dataclasses.is_dataclass(config) and config.__dataclass_params__.frozen  # type: ignore[attr-defined]
