"""Find plugins, ask each what it contributes, and look contributions up by name."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, overload

import pluggy

from recipe_core.errors import PluginError, did_you_mean
from recipe_core.hooks import hooks
from recipe_core.hooks.launcher import Launcher
from recipe_core.hooks.loop_specs import LossSpec, OptimizerSpec, ScheduleSpec, TrackerSpec
from recipe_core.hooks.specs import CheckpointFormat, Dataset, EngineSpec, Layout, LayoutSettings, Model, Recipe, Spec
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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Can be typed without quotes, is a file name, and holds no ``:``, which divides a recipe from its variant."""


@dataclass(frozen=True)
class Claim:
    """A contribution and the plugin that provides it."""

    owner: str
    item: Contribution


@dataclass
class Registry:
    """Every contribution of every plugin that loaded."""

    claims: dict[Kind, dict[str, list[Claim]]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """By kind and name; several where several plugins claim one name."""
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
        """Return the contribution ``name``.

        Raises:
            PluginError: nobody contributes it (the plugins that did not load are named), or more than one.
        """
        claims = self.claims[kind].get(name)
        if claims is None:
            raise PluginError(self._unknown(kind, name))
        if len(claims) > 1:
            raise PluginError(self._conflict(kind, name))
        return claims[0].item

    def names(self, kind: Kind) -> list[str]:
        """Return the names of all contributions of a kind, sorted."""
        return sorted(self.claims[kind])

    def conflicts(self) -> list[str]:
        """Return a message for every name that several plugins claim."""
        names = [(kind, name) for kind in KINDS for name in self.names(kind)]
        return [self._conflict(kind, name) for kind, name in names if len(self.claims[kind][name]) > 1]

    def complaints(self) -> list[str]:
        """Return a message for every plugin that did not load."""
        return [f"plugin {plugin!r} did not load and is left out: {why}" for plugin, why in self.broken.items()]

    def _unknown(self, kind: Kind, name: str) -> str:
        known = self.names(kind)
        text = f"no {NOUNS[kind]} named {name!r}{did_you_mean(name, known)} (there are: {', '.join(known) or 'none'})"
        return "; ".join([text, *self.complaints()])

    def _conflict(self, kind: Kind, name: str) -> str:
        owners = " and by ".join(f"plugin {claim.owner!r}" for claim in self.claims[kind][name])
        return (
            f"{NOUNS[kind]} {name!r} is provided by {owners}; uninstall one of them, or name those to load in "
            "RECIPE_PLUGINS (plugin,plugin,...)"
        )


def load(plugins: Iterable[tuple[str, Loader]] | None = None) -> Registry:
    """Load ``plugins`` (name and loader; default: those installed) and ask every hook of each.

    A plugin that cannot be loaded, or answers a hook with nonsense, is left out as a whole and noted in ``broken``.
    """
    registry = Registry()
    for name, loader in installed() if plugins is None else plugins:
        try:
            # `recipe show > FILE` must hold no line that a plugin prints while it is imported.
            with contextlib.redirect_stdout(sys.stderr):
                contributions = list(_contributions(name, loader))
        except (Exception, SystemExit) as error:  # any code may run here, a plugin's mistake is not the user's
            text = str(error)
            registry.broken[name] = text if isinstance(error, PluginError) else f"{type(error).__name__}: {text}"
            continue
        registry.plugins.append(name)
        for kind, item in contributions:
            registry.claims[kind].setdefault(item.name, []).append(Claim(name, item))
    return registry


def installed() -> Iterator[tuple[str, Loader]]:
    """Yield name and loader of the entry points in the group ``recipe.plugins``, the core's first.

    The environment variable ``RECIPE_PLUGINS`` (names, divided by commas) leaves all others out, except the core.
    """
    import importlib.metadata

    points = sorted(importlib.metadata.entry_points(group=hooks.GROUP), key=lambda p: (p.name != "core", p.name))
    listed = os.environ.get("RECIPE_PLUGINS")
    wanted = None if listed is None else {"core", *(name.strip() for name in listed.split(",") if name.strip())}
    for number, point in enumerate(points):
        if wanted is None or point.name in wanted:
            twin = point.name in [other.name for other in points[:number]]
            yield f"{point.name} ({point.value})" if twin else point.name, partial(load_point, point)
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
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            answer = implementation.function()
            if not isinstance(answer, Iterable):
                raise PluginError(f"{hook} gave back {answer!r}; expected an iterable of {_CLASSES[kind].__name__}")
            for item in answer:
                yield kind, _checked(item, kind, hook)


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
    if isinstance(item, Spec) and not _is_settings_class(item.config):
        raise PluginError(f"{hook}: config of {item.name!r} is not a frozen dataclass: {item.config!r}")
    if isinstance(item, Layout) and not issubclass(item.config, LayoutSettings):
        raise PluginError(f"{hook}: config of {item.name!r} is no subclass of LayoutSettings: {item.config!r}")
    return item


def _is_settings_class(config: object) -> bool:
    return isinstance(config, type) and dataclasses.is_dataclass(config) and config.__dataclass_params__.frozen  # type: ignore[attr-defined]
