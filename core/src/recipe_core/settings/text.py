"""Text turned into what a setting declares: ``1e3`` into a whole number, ``a,b`` into a list.

What cannot be turned stays as it is, and :mod:`recipe_core.settings.fill` has pydantic say what was expected instead.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from recipe_core.errors import did_you_mean

_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
"""What YAML 1.1 reads as true and false. Not 1 and 0: who writes those has mostly mistaken the setting."""


def kinds(settings: type) -> dict[str, Any]:
    """The settings of a settings class: name -> declared type."""
    hints = typing.get_type_hints(settings, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(settings) if f.init}


def choices(kind: Any) -> list[str]:
    """What may be written for a setting declared as ``kind``, where that is a short list; else nothing."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return [_written(member) for member in members]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [_written(member.value) for member in kind]
    if origin is typing.Annotated:
        return choices(members[0])
    if _is_union(kind):
        return [text for member in members for text in choices(member)]
    return {bool: ["true", "false"], type(None): ["null"]}.get(kind, [])


def read(kind: Any, value: Any, where: str, problems: list[str]) -> Any:
    """Plain data with every text in it turned into what ``kind`` declares.

    Names that a settings class does not have are appended to ``problems`` and left out; ``where`` is the path that
    they are reported under.
    """
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    shape = kind if origin is None else origin
    if origin is typing.Annotated:
        return read(members[0], value, where, problems)
    if _is_union(kind):
        return _read_union(members, value, where, problems)
    if dataclasses.is_dataclass(kind):
        return _read_settings(typing.cast(type, kind), _flow(value, "{"), where, problems)
    if not isinstance(shape, type) or issubclass(shape, (str, bytes)) or not issubclass(shape, Collection):
        return _read_scalar(kind, value)
    if issubclass(shape, Mapping):
        return _read_mapping(members, _flow(value, "{"), where, problems)
    return _read_list(shape, members, _flow(value, "["), where, problems)


def _read_settings(kind: type, value: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    known = kinds(kind)
    listed = f"settings: {', '.join(known)}" if known else "it has none"
    for name in value:
        if name not in known:
            problems.append(f"{where}.{name}: no such setting{did_you_mean(name, known)} ({listed})")
    return {n: read(known[n], item, f"{where}.{n}", problems) for n, item in value.items() if n in known}


def _read_mapping(members: Sequence[Any], value: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(value, Mapping):
        return value
    inside = members[1] if members else Any
    return {name: read(inside, item, f"{where}.{name}", problems) for name, item in value.items()}


def _read_list(shape: type, members: Sequence[Any], value: Any, where: str, problems: list[str]) -> Any:
    if isinstance(value, str):
        value = [item.strip() for item in value.split(",")] if value.strip() else []
    if not isinstance(value, list):
        return value
    members = members or [Any]
    one_by_one = shape is tuple and Ellipsis not in members
    each = [members[min(i, len(members) - 1)] if one_by_one else members[0] for i in range(len(value))]
    return [read(kind, item, f"{where}[{i}]", problems) for i, (kind, item) in enumerate(zip(each, value, strict=True))]


def _read_union(members: Sequence[Any], value: Any, where: str, problems: list[str]) -> Any:
    others = [member for member in members if member is not type(None)]
    if value is None or (value == "null" and len(others) < len(members)):
        return None
    if len(others) == 1:
        return read(others[0], value, where, problems)
    if isinstance(value, str) and any(dataclasses.is_dataclass(kind) for kind in others):
        value = _flow(value, "{")
    if isinstance(value, Mapping):  # the first settings class that has all these settings
        fits = [kind for kind in others if dataclasses.is_dataclass(kind) and value.keys() <= kinds(kind).keys()]  # type: ignore[arg-type]
        return read(fits[0], value, where, problems) if fits else value
    if isinstance(value, str):  # the first member that makes something else of the text
        one_by_one = (read(kind, value, where, []) for kind in others if _fits_text(kind, value))
        return next((found for found in one_by_one if not isinstance(found, str)), value)
    return value


def _fits_text(kind: Any, text: str) -> bool:
    """Whether ``kind`` may be what ``text`` means in a union: lists and settings need brackets there."""
    nested = dataclasses.is_dataclass(kind) or typing.get_origin(kind) not in (None, typing.Literal, typing.Annotated)
    return not nested or text.startswith(("[", "{"))


def _flow(value: Any, bracket: str) -> Any:
    """Text like ``[a, b]`` or ``{a: b}`` as the list or mapping that YAML reads; its items stay text."""
    if not isinstance(value, str) or not value.lstrip().startswith(bracket):
        return value
    import yaml

    try:
        return yaml.load(value, Loader=yaml.BaseLoader)  # which makes nothing but text of what it reads
    except yaml.YAMLError:
        return value


def _read_scalar(kind: Any, value: Any) -> Any:
    options = _options(kind)
    if isinstance(value, float) and kind is int and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    if options:
        return next((option for option in options if _written(option) == value), value)
    if kind is bool:
        return _TRUTH.get(value.lower(), value)
    if kind in (int, float):
        return _read_number(kind, value)
    return None if kind is type(None) and value == "null" else value


def _options(kind: Any) -> list[Any]:
    """The values that a Literal or an Enum lists."""
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    return [member.value for member in kind] if isinstance(kind, type) and issubclass(kind, enum.Enum) else []


def _read_number(kind: type, text: str) -> Any:
    """A finite number; a whole one (``1e3`` is one) where ``kind`` is int. Else the text itself."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number) or (kind is int and not number.is_integer()):
        return text
    return int(number) if kind is int else number


def _written(value: Any) -> str:
    """A value as a user would write it."""
    return value if isinstance(value, str) else json.dumps(value)


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)
