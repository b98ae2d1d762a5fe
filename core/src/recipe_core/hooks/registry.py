"""The registry: find plugins, collect their contributions, and look these up by name."""

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
from recipe_core.hooks.kinds import CLASSES, KINDS, NOUNS, Contribution, Kind, PartKind
from recipe_core.hooks.markers import GROUP, PROJECT
from recipe_core.hooks.specs import (
    COLUMNS,
    CheckpointFormat,
    Dataset,
    Layout,
    LayoutSettings,
    Model,
    Recipe,
    Reduction,
    Spec,
    Use,
)
from recipe_core.hooks.specs.command import CORE_COMMANDS, CommandSpec
from recipe_core.hooks.specs.evaluation import EvaluationSpec, require_evaluation
from recipe_core.hooks.specs.executor import ExecutorSpec
from recipe_core.hooks.specs.launcher import Launcher
from recipe_core.hooks.specs.loop import CallbackSpec, LossSpec, TrackerSpec
from recipe_core.hooks.specs.transform import TransformSpec
from recipe_core.hooks.specs.wrapper import WRAPPERS, DataWrapperSpec
from recipe_core.hooks.target import described
from recipe_core.hooks.version import load_point, require_api

Loader = Callable[[], object]

_SHIPPED = {
    ("recipe", "bert_dp"): "./plugins/bert_dp",
    ("recipe", "bert_tp"): "./plugins/bert_dp ./plugins/bert_tp",
    ("recipe", "hf_finetune"): "./plugins/bert_dp ./plugins/hf_finetune",
    ("recipe", "megatron_gpt"): "./csrc ./plugins/megatron_gpt",
    ("executor", "ray"): "./plugins/ray",
}
"""Recipes and executors of this repository, and the folders of their packages, for a message."""
_USE = "use"
_WORDS: dict[type, str] = {str: "a text", tuple: "a tuple", list: "a list", Mapping: "a mapping", Use: "Use(NAME, ...)"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""A name needs no quotes in a shell, is a file name, and holds no ``:``, which separates a recipe from its variant."""


CORE = "core"
"""The plugin of the core's own contributions; no other plugin can take over their names."""


@dataclass(frozen=True)
class Registration:
    """A contribution and the plugin that provides it."""

    owner: str
    item: Contribution


@dataclass
class Registry:
    """Every contribution of every plugin that loaded.

    A contribution is registered under its own name. If several plugins use one name, the core's contribution keeps it,
    and all others are registered as ``plugin/name``, which also becomes the name in their specs, so that settings, job
    files and checkpoints are unambiguous.
    """

    registrations: dict[Kind, dict[str, Registration]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """By kind and registered name."""
    contested: dict[Kind, dict[str, list[str]]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """Names that several plugins use and the core does not, with the names that are registered instead."""
    plugins: list[str] = field(default_factory=list)
    """The plugins that loaded."""
    broken: dict[str, str] = field(default_factory=dict)
    """The plugins that did not load, and why."""

    @overload
    def get(self, kind: Literal["recipe"], name: str, near: str = "") -> Recipe: ...
    @overload
    def get(self, kind: Literal["launcher"], name: str, near: str = "") -> Launcher: ...
    @overload
    def get(self, kind: Literal["executor"], name: str, near: str = "") -> ExecutorSpec: ...
    @overload
    def get(self, kind: Literal["model"], name: str, near: str = "") -> Model: ...
    @overload
    def get(self, kind: Literal["data"], name: str, near: str = "") -> Dataset: ...
    @overload
    def get(self, kind: Literal["layout"], name: str, near: str = "") -> Layout: ...
    @overload
    def get(self, kind: Literal["checkpoint"], name: str, near: str = "") -> CheckpointFormat: ...
    @overload
    def get(self, kind: Literal["tracker"], name: str, near: str = "") -> TrackerSpec: ...
    @overload
    def get(self, kind: Literal["callback"], name: str, near: str = "") -> CallbackSpec: ...
    @overload
    def get(self, kind: Literal["command"], name: str, near: str = "") -> CommandSpec: ...
    @overload
    def get(self, kind: Literal["wrapper"], name: str, near: str = "") -> DataWrapperSpec: ...
    @overload
    def get(self, kind: Literal["transform"], name: str, near: str = "") -> TransformSpec: ...
    @overload
    def get(self, kind: Literal["evaluation"], name: str, near: str = "") -> EvaluationSpec: ...
    @overload
    def get(self, kind: PartKind, name: str, near: str = "") -> Spec: ...
    @overload
    def get(self, kind: Kind, name: str, near: str = "") -> Contribution: ...
    def get(self, kind: Kind, name: str, near: str = "") -> Contribution:
        """Return the contribution ``name``, or ``plugin/name``.

        Of several plugins with one name, the plugin ``near`` comes first.

        Raises:
            PluginError: no plugin contributes it (the message names those that did not load), or several do.
        """
        registration = self._find(kind, name)
        if registration is None and name in self.contested[kind]:
            registration = self._find(kind, f"{near}/{name}")
        if registration is not None:
            return registration.item
        raise PluginError(self._conflict(kind, name) if name in self.contested[kind] else self._unknown(kind, name))

    def owner(self, kind: Kind, name: str) -> str:
        """Return the plugin of the contribution that :meth:`get` returns for ``name``; empty if there is none."""
        registration = self._find(kind, name)
        return registration.owner if registration is not None else ""

    def names(self, kind: Kind) -> list[str]:
        """Return the registered names of a kind, sorted."""
        return sorted(self.registrations[kind])

    def conflicts(self) -> list[str]:
        """Return a message for each name that several plugins use and the core does not."""
        return [self._conflict(kind, name) for kind in KINDS for name in sorted(self.contested[kind])]

    def shadowed(self) -> list[str]:
        """Return a message for each contribution that has the name of one of the core's."""
        return [
            f"{NOUNS[kind]} {plain!r} is the core's own; that of plugin {registration.owner!r} goes by {name}"
            for kind in KINDS
            for name, registration in sorted(self.registrations[kind].items())
            if (plain := name.removeprefix(f"{registration.owner}/")) != name
            and (plain in self.registrations[kind] or _is_core_command(kind, plain))
        ]

    def add(self, contributions: Iterable[tuple[Kind, Registration]]) -> None:
        """Register the contributions of all plugins under unambiguous names; call it once."""
        by_name: dict[tuple[Kind, str], list[Registration]] = {}
        for kind, registration in contributions:
            by_name.setdefault((kind, registration.item.name), []).append(registration)
        for (kind, name), rivals in by_name.items():
            reserved = _is_core_command(kind, name)
            alone = len(rivals) == 1 and not reserved
            plain = rivals[0] if alone else next((rival for rival in rivals if rival.owner == CORE), None)
            if plain is not None:
                self.registrations[kind][name] = plain
            qualified = {f"{rival.owner}/{name}": rival for rival in rivals if rival is not plain}
            for reference, rival in qualified.items():
                item = dataclasses.replace(rival.item, name=reference)
                self.registrations[kind][reference] = Registration(rival.owner, item)
            if plain is None and not reserved:
                self.contested[kind][name] = list(qualified)

    def _find(self, kind: Kind, name: str) -> Registration | None:
        registration = self.registrations[kind].get(name)
        owner, slash, plain = name.rpartition("/")
        if registration is None and slash:  # the full name of one that goes by its own
            registration = self.registrations[kind].get(plain)
            registration = registration if registration is not None and registration.owner == owner else None
        return registration

    def complaints(self) -> list[str]:
        """Return a message for each plugin that did not load."""
        return [f"plugin {plugin!r} did not load and is left out: {why}" for plugin, why in self.broken.items()]

    def _unknown(self, kind: Kind, name: str) -> str:
        known = self.names(kind)
        hint = did_you_mean(name, known)
        if folders := _SHIPPED.get((kind, name)):
            package = f"recipe-{name.replace('_', '-')}"
            hint = f"; {package} is not installed: python -m pip install {folders}, in a clone of the repository"
        text = f"no {NOUNS[kind]} named {name!r}{hint} (there are: {', '.join(known) or 'none'})"
        return "; ".join([text, *self.complaints()])

    def _conflict(self, kind: Kind, name: str) -> str:
        names = self.contested[kind][name]
        owners = " and by ".join(f"plugin {self.registrations[kind][one].owner!r}" for one in names)
        return f"{NOUNS[kind]} {name!r} is provided by {owners}; say which one: {' or '.join(names)}"


def _is_core_command(kind: Kind, name: str) -> bool:
    return kind == "command" and name in CORE_COMMANDS


def load(plugins: Iterable[tuple[str, Loader]] | None = None) -> Registry:
    """Load ``plugins`` (name and loader; default: those installed) and call each hook of each plugin.

    A plugin that cannot be loaded, or whose hook returns something invalid, is left out as a whole and recorded in
    ``broken``.
    """
    registry, registrations = Registry(), list[tuple[Kind, Registration]]()
    for name, loader in installed() if plugins is None else plugins:
        try:
            # `recipe show > FILE` must hold no line that a plugin prints while it is imported.
            with contextlib.redirect_stdout(sys.stderr):
                contributions = list(_contributions(name, loader))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # any code may run here, a plugin's mistake is not the user's
            text = " ".join(str(error).split())
            registry.broken[name] = text if isinstance(error, PluginError) else described(error)
            continue
        registry.plugins.append(name)
        registrations += [(kind, Registration(name, item)) for kind, item in contributions]
    registry.add(registrations)
    return registry


def installed() -> Iterator[tuple[str, Loader]]:
    """Yield name and loader of the entry points in the group ``recipe.plugins``, the core's first.

    The environment variable ``RECIPE_PLUGINS`` (names, separated by commas) restricts them to these and the core.
    """
    import importlib.metadata

    points = sorted(
        importlib.metadata.entry_points(group=GROUP), key=lambda p: (p.value != "recipe_core.plugin", p.name)
    )
    names = os.environ.get("RECIPE_PLUGINS")
    wanted = None if names is None else {CORE, *(name.strip() for name in names.split(",") if name.strip())}
    for number, point in enumerate(points):
        if wanted is None or point.name in wanted:
            twin = point.name in [other.name for other in points[:number]]
            yield point.value if twin else point.name, partial(load_point, point)
    for name in sorted((wanted or set()) - {point.name for point in points}):
        yield name, lambda: _missing([point.name for point in points])


def distributions() -> dict[str, str]:
    """Map the installed plugins to their distributions: ``{"core": "recipe-core 0.1.0"}``."""
    import importlib.metadata

    points = importlib.metadata.entry_points(group=GROUP)
    return {point.name: f"{point.dist.name} {point.dist.version}" for point in points if point.dist is not None}


def _missing(known: list[str]) -> object:
    raise PluginError(f"RECIPE_PLUGINS names it, and it is not installed (installed: {', '.join(known) or 'none'})")


def _contributions(name: str, loader: Loader) -> Iterator[tuple[Kind, Contribution]]:
    # A manager for each plugin, so that a mistake of one is never attributed to another.
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hooks)
    plugin = loader()
    require_api(getattr(plugin, "API", 1))
    manager.register(plugin, name)
    _refuse_unknown_hooks(manager)
    if not manager.get_hookcallers(plugin):
        raise PluginError("it implements no hook; is @hookimpl missing above register_...?")
    for kind, hook in KINDS.items():
        _refuse_undecorated(plugin, hook, manager)
        names: set[str] = set()
        for implementation in getattr(manager.hook, hook).get_hookimpls():
            answer = implementation.function()
            if not isinstance(answer, Iterable):
                raise PluginError(f"{hook} gave back {answer!r}; expected an iterable of {CLASSES[kind].__name__}")
            for item in answer:
                yield kind, _checked(item, kind, hook)
                if item.name in names:
                    raise PluginError(f"{hook} gave back two named {item.name!r}")
                names.add(item.name)


def _refuse_unknown_hooks(manager: pluggy.PluginManager) -> None:
    for hook, caller in vars(manager.hook).items():
        if not hook.startswith("_") and not caller.has_spec():
            raise PluginError(f"there is no hook {hook!r}{did_you_mean(hook, KINDS.values())}")


def _refuse_undecorated(plugin: object, hook: str, manager: pluggy.PluginManager) -> None:
    if callable(getattr(plugin, hook, None)) and not getattr(manager.hook, hook).get_hookimpls():
        raise PluginError(f"{hook} is never called, since @hookimpl is missing above it; add it")


def _checked(item: object, kind: Kind, hook: str) -> Contribution:
    if not isinstance(item, CLASSES[kind]):
        raise PluginError(f"{hook} gave back {item!r}; expected a {CLASSES[kind].__name__}")
    if not isinstance(item.name, str) or not _NAME.fullmatch(item.name):
        raise PluginError(f"{hook}: the name {item.name!r} holds more than letters, digits, '_', '-' and '.'")
    _refuse_values(item, hook)
    if isinstance(item, Spec) and not _is_settings_class(item.config):
        raise PluginError(f"{hook}: config of {item.name!r} is not a frozen dataclass: {item.config!r}")
    if isinstance(item, (Model, LossSpec)):
        _refuse_metrics(item, hook)
    if isinstance(item, EvaluationSpec):
        require_evaluation(item, hook)
    if isinstance(item, Layout) and not issubclass(item.config, LayoutSettings):
        raise PluginError(f"{hook}: config of {item.name!r} is no subclass of LayoutSettings: {item.config!r}")
    if isinstance(item, Spec) and _USE in [one.name for one in dataclasses.fields(item.config)]:
        raise PluginError(
            f"{hook}: a setting of {item.name!r} is named {_USE!r}, the word that names the part itself; choose "
            "another name"
        )
    if isinstance(item, Dataset) and WRAPPERS in [one.name for one in dataclasses.fields(item.config)]:
        raise PluginError(
            f"{hook}: a setting of {item.name!r} is named {WRAPPERS!r}, which lists the data wrappers around it; "
            "choose another name"
        )
    return item


def _refuse_metrics(item: Model | LossSpec, hook: str) -> None:
    for name, reduction in item.metrics.items():
        if reduction not in get_args(Reduction):
            known = ", ".join(get_args(Reduction))
            raise PluginError(
                f"{hook}: metrics of {item.name!r} reduces {name!r} by {reduction!r}; expected one of {known}"
            )
        if name in COLUMNS or (name == "loss" and reduction != "mean"):
            raise PluginError(
                f"{hook}: metrics of {item.name!r} has {name!r}, a column of the core's own; choose another name"
            )


def _refuse_values(item: Contribution, hook: str) -> None:
    # Values of other types than the fields of the spec declare would fail in some later command.
    for name, declared in _declared(type(item)).items():  # type: ignore[arg-type]  # a class can be hashed
        value = getattr(item, name)
        if not isinstance(value, declared):
            words = " or ".join(_WORDS.get(one, one.__name__) for one in declared)
            raise PluginError(f"{hook}: {name} of {item.name!r} is {value!r:.60}; expected {words}")
        if isinstance(value, Use) and _USE in value.settings:
            raise PluginError(f"{hook}: {name} of {item.name!r} sets {_USE!r}, the word that names the part itself")
    for name, variant in item.variants.items() if isinstance(item, Recipe) else ():
        if not isinstance(variant, Mapping):
            raise PluginError(f"{hook}: variant {name!r} of {item.name!r} is {variant!r:.60}; expected a mapping")


@lru_cache
def _declared(spec: Any) -> dict[str, tuple[type, ...]]:
    """The classes that a value of each field may have; without fields that accept anything."""
    kinds: dict[str, tuple[type, ...]] = {}
    for name, hint in get_type_hints(spec).items():
        options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        classes = tuple(get_origin(option) or option for option in options)
        if get_origin(hint) is not ClassVar and all(isinstance(one, type) for one in classes):
            kinds[name] = (*classes, list) if tuple in classes else classes
    return kinds


def _is_settings_class(config: object) -> bool:
    return isinstance(config, type) and dataclasses.is_dataclass(config) and config.__dataclass_params__.frozen  # type: ignore[attr-defined]
