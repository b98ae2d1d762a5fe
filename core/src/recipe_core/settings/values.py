"""Values of settings: plain data read as the types that a settings class declares, with a message for each mistake.

Text is converted to the declared type: ``1e3`` to a whole number, ``a,b`` to a list.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, replace
from functools import cache
from pathlib import PurePath
from typing import Any

from recipe_core.errors import RecipeError, did_you_mean
from recipe_core.files import remote
from recipe_core.files.named import split_weights
from recipe_core.files.objects import is_address
from recipe_core.settings.plain import NotPlainError, plain

_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""YAML 1.1's words for true and false. Not 1 and 0, which usually belong to another setting."""
_EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}


@cache
def kinds(settings: Any) -> dict[str, Any]:
    """Map the settings of a settings class to their declared types."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(settings) if f.init}


def paths(settings: type, parent: str) -> dict[str, Any]:
    """Map ``parent.setting`` of each setting of a settings class, nested ones included, to its declared type."""
    declared: dict[str, Any] = {}
    for name, kind in kinds(settings).items():
        declared[f"{parent}.{name}"] = kind
        if dataclasses.is_dataclass(kind):
            declared |= paths(kind, f"{parent}.{name}")  # type: ignore[arg-type]
    return declared


def choices(kind: Any) -> list[str]:
    """List the texts that a setting declared as ``kind`` accepts; empty if there are too many."""
    if _is_union(kind):
        return [text for member in typing.get_args(kind) for text in choices(member)]
    constants = {bool: ["true", "false"], types.NoneType: ["null"]}
    return [_written(option) for option in _options(kind)] or constants.get(kind, [])


_ADDRESSES = "If it is an address and no path, {} has to declare that: field(..., metadata={{'remote': True}})"

OF_PATHS = re.compile("file|path|folder|dir|source|output")
"""Names of settings that are surely paths."""


@dataclass(frozen=True)
class Reader:
    """Reads plain data as declared types and collects the problems; if there are any, the values are meaningless."""

    unknown: list[str] = field(default_factory=list)
    """Problems with names that a settings class does not have."""
    wrong: list[str] = field(default_factory=list)
    """Problems with values, by their declared types and by ``__post_init__``."""
    remote: list[str] = field(default_factory=list)
    """Problems with remote addresses."""
    local: bool = True
    """Refuse text with ``://`` (remote addresses): settings name places on this machine."""
    objects: bool = False
    """Accept addresses of object storage."""
    plugin_class: str = ""
    """The plugin's class of the settings that are read, for a hint at how it may declare addresses."""

    def read(self, kind: Any, value: Any, where: str) -> Any:
        """Read ``value`` as ``kind``; ``where`` is its path in messages."""
        members, shape = typing.get_args(kind), typing.get_origin(kind) or kind
        if _is_union(kind):
            return self._union(members, value, where)
        if dataclasses.is_dataclass(kind):
            return self._settings(kind, _flow(value, "{"), where)
        if not _is_nested(kind):
            return self._scalar(kind, value, where)
        if issubclass(shape, Mapping):
            return self._mapping(members or (str, Any), _flow(value, "{"), where)
        return self._list(shape, members or (Any, ...), _flow(value, "["), where)

    def _refuse(self, expected: str, value: Any, where: str, near: str = "") -> None:
        self.wrong.append(f"{where}: expected {expected}, got {_shown(value)}{near}")

    def _settings(self, kind: Any, value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            return self._refuse(_expected(kind), value, where)
        known, values, before = kinds(kind), {}, len(self.wrong)
        names = f"settings: {', '.join(known)}" if known else "it has none"
        for name in (name for name in value if name not in known):
            self.unknown.append(f"{where}.{name}: no such setting{did_you_mean(name, known)} ({names})")
        for item in (item for item in dataclasses.fields(kind) if item.init):
            name, path, anywhere = item.name, f"{where}.{item.name}", replace(self, local=False)
            if name in value:
                owner = "" if OF_PATHS.search(name) else _plugin_class(kind)
                reader = _reader(self, item.metadata.get("remote"), owner)
                values[name] = reader.read(known[name], value[name], path)
            elif item.default is MISSING and item.default_factory is MISSING:
                self.wrong.append(f"{path}: is missing, and has no default")
            else:  # it may be 2 for a float
                default = item.default_factory() if item.default_factory is not MISSING else item.default
                try:
                    values[name] = anywhere.read(known[name], plain(default), path)
                except NotPlainError:
                    self.wrong.append(
                        f"{path}: YAML cannot hold the default of {kind.__name__}.{name}, {default!r:.60}; fix the "
                        "plugin: a setting is a text, a number, a list, a mapping or null"
                    )
        return self._built(kind, values, where) if len(self.wrong) == before else None

    def _built(self, kind: Any, values: Mapping[str, Any], where: str) -> Any:
        try:
            return kind(**values)
        except (ValueError, AssertionError) as error:  # of __post_init__
            self.wrong.extend(_under(where, line) for line in str(error).splitlines())
        except RecipeError:
            raise
        except (Exception, SystemExit) as error:
            self.wrong.append(f"{where}: {kind.__name__} takes no such settings ({type(error).__name__}: {error})")

    def _mapping(self, members: Sequence[Any], value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            return self._refuse(_expected(dict), value, where)
        return {self.read(members[0], k, where): self.read(members[1], v, f"{where}.{k}") for k, v in value.items()}

    def _list(self, shape: type, members: Sequence[Any], value: Any, where: str) -> Any:
        if isinstance(value, str):
            value = [item.strip() for item in value.split(",")] if value.strip() else []
        if not isinstance(value, list):
            return self._refuse(_expected(list), value, where)
        fixed = shape is tuple and Ellipsis not in members
        each = [members[min(i, len(members) - 1)] if fixed else members[0] for i in range(len(value))]
        items = [self.read(kind, value[i], f"{where}[{i}]") for i, kind in enumerate(each)]
        if fixed and len(items) != len(members):
            count = f"{len(members)} value{'s' * (len(members) != 1)}"
            return self._refuse(count, [_loaded(item) for item in value], where)
        return shape(items) if shape in (tuple, set, frozenset) else items

    def _union(self, members: Sequence[Any], value: Any, where: str) -> Any:
        others = [member for member in members if member is not types.NoneType]
        if len(others) < len(members) and value in (None, "null"):
            return None
        if len(others) == 1:
            return self.read(others[0], value, where)
        text, wrong_inside = isinstance(value, str), {}
        # For text, try str last; for other values, try their own type first.
        for kind in sorted(others, key=lambda kind: kind is str if text else kind is not type(value)):
            if text and _is_nested(kind) and not value.startswith(("[", "{")):
                continue
            trial = Reader(local=False)
            trial.read(kind, value, where)
            if not trial.unknown + trial.wrong:
                return self.read(kind, value, where)
            if not any(problem.startswith(f"{where}: ") for problem in trial.wrong):
                wrong_inside[kind] = len(trial.unknown)
        if wrong_inside:
            return self.read(min(wrong_inside, key=lambda kind: wrong_inside[kind]), value, where)
        return self._refuse(" or ".join(dict.fromkeys(map(_expected, others))), value, where)

    def _scalar(self, kind: Any, value: Any, where: str) -> Any:
        if self.local and isinstance(value, str) and "://" in value and not (self.objects and _is_object(value)):
            setting = re.sub(r"\[\d+\]$", "", where)
            hint = f". {_ADDRESSES.format(self.plugin_class)}" if self.plugin_class else ""
            self.remote.append(f"{setting}: {remote(value)}{hint}")
        try:
            return _scalar(kind, value)
        except (ValueError, OverflowError):
            infinite = kind is float and type(value) in (int, float)
            names = [option for option in _options(kind) if isinstance(option, str)]
            near = did_you_mean(value, names) if isinstance(value, str) else ""
            return self._refuse("a finite number" if infinite else _expected(kind), value, where, near)


def _reader(reader: Reader, remote: object, owner: str) -> Reader:
    if remote == "objects":
        return replace(reader, objects=True, plugin_class="")
    return replace(reader, local=False) if remote else replace(reader, plugin_class=owner)


def _is_object(text: str) -> bool:
    return is_address(split_weights([text])[0].text)


def _plugin_class(kind: type) -> str:
    return "" if kind.__module__.partition(".")[0] == "recipe_core" else kind.__name__


def _scalar(kind: Any, value: Any) -> Any:
    """Convert ``value`` to ``kind``, or raise a ValueError."""
    for option in _options(kind):
        if (type(option) is type(value) and option == value) or _written(option) == value:
            return kind(option) if isinstance(kind, type) else option
    if kind is Any:
        return value
    if kind in (int, float):
        return _number(kind, value)
    if kind is bool and str(value).lower() in _TRUTH and isinstance(value, (bool, str)):
        return _TRUTH[str(value).lower()]
    if kind is types.NoneType and value in (None, "null"):
        return None
    if isinstance(kind, type) and issubclass(kind, (str, PurePath)) and isinstance(value, str):
        return kind(value)
    raise ValueError


def _number(kind: Any, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = float(value)
    if isinstance(number, float) and (not math.isfinite(number) or (kind is int and not number.is_integer())):
        raise ValueError
    return kind(number)


def _flow(value: Any, bracket: str) -> Any:
    """Parse text like ``[a, b]`` or ``{a: b}`` as YAML; the items remain text."""
    if not isinstance(value, str) or not value.lstrip().startswith(bracket):
        return value
    from recipe_core.files.documents import DocumentError, parse_yaml

    with suppress(DocumentError):
        return parse_yaml(value, plain=True)
    return value


def _under(path: str, line: str) -> str:
    """Prefix the settings that a line of a ``__post_init__`` names with their path."""
    names = re.match(r"\w+(?:, \w+)*(?=: )", line)
    if names is None:
        return f"{path}: {line}"
    return ", ".join(f"{path}.{name}" for name in names.group().split(", ")) + line[names.end() :]


def _expected(kind: Any) -> str:
    if options := [repr(option) for option in _options(kind)]:
        return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    shape = typing.get_origin(kind) or kind
    if _is_nested(kind):
        settings = dataclasses.is_dataclass(shape) or issubclass(shape, Mapping)
        return "settings ({name: value})" if settings else "a list"
    if isinstance(shape, type) and issubclass(shape, PurePath):
        return _EXPECTED[str]
    return f"a type that settings can have, which {kind} is not"


def _options(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, enum.Enum) else []


def _is_nested(kind: Any) -> bool:
    shape = typing.get_origin(kind) or kind
    if dataclasses.is_dataclass(shape):
        return True
    return isinstance(shape, type) and issubclass(shape, Collection) and not issubclass(shape, (str, bytes, enum.Enum))


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _loaded(item: Any) -> Any:
    for number in (int, float) if isinstance(item, str) else ():
        with suppress(ValueError):
            return number(item)
    return item


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _shown(value: Any) -> str:
    """Return a value as it would stand in a file, cut where it is long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 100 else f"{text[:97]}..."
