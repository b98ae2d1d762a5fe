"""Settings that are plainly right, built without pydantic, whose import takes longer than all else of `recipe show`.

What is taken here, pydantic takes too, with the same result; of everything else it is the judge.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from recipe_core.settings.text import kinds

T = TypeVar("T")


class _UnsureError(Exception):
    """Pydantic has to look at it."""


def build(kind: type[T], given: Any, plain: Callable[[T], Any]) -> T | None:
    """The settings class ``kind`` with the plain data ``given``, or None: not plainly right.

    The defaults are looked at too, and made what they are declared to be: through ``plain``, which turns settings into
    plain data.
    """
    if not isinstance(given, Mapping):
        return None
    try:
        declared = kinds(kind)
        for _ in range(2):
            settings = kind(**{name: _value(declared[name], value) for name, value in given.items()})
            given = plain(settings)
    except Exception:  # a __post_init__ may raise anything, and pydantic will meet it again
        return None
    return settings


def _value(kind: Any, value: Any) -> Any:
    """``value`` as what a setting is declared to be."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        others = [member for member in members if member is not types.NoneType]
        if value is None and len(others) < len(members):
            return None
        if len(others) == 1:
            return _value(others[0], value)
    elif origin is typing.Literal:
        if any(type(member) is type(value) and member == value for member in members):
            return value
    elif origin is tuple and isinstance(value, list):
        each = [members[0]] * len(value) if members[1:] == (...,) else members
        return tuple(_value(member, item) for member, item in zip(each, value, strict=True))
    elif kind is float and type(value) is int and abs(value) < 1 << 53:
        return float(value)
    elif kind in (bool, int, float, str) and type(value) is kind and (kind is not float or math.isfinite(value)):
        return value
    raise _UnsureError
