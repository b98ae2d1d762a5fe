"""Settings as plain data, which YAML and JSON can hold."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from datetime import date
from pathlib import PurePath
from typing import Any

from recipe_core.hooks.specs import Part, Use


class NotPlainError(ValueError):
    """A value that YAML cannot hold."""


def plain(value: Any) -> Any:
    """Return dataclasses, paths, tuples and the like as plain data, which YAML and JSON can hold.

    Raises:
        NotPlainError: they cannot hold ``value``.
    """
    if isinstance(value, Part):
        return plain(value.section())
    if isinstance(value, Use):
        return {"use": value.name, **plain(value.settings)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, date):  # YAML reads 2024-01-31 as a date
        return value.isoformat()
    for base in (bool, int, float, str):
        if isinstance(value, base):
            return base(value)
    if value is None:
        return None
    raise NotPlainError(f"expected what YAML can hold, got {value!r}")
