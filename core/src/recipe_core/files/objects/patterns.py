"""Patterns in the keys of objects, with the meaning that they have in paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from recipe_core.files.objects.address import ObjectPath

_WILDCARD = re.compile(r"[*?\[]")


def has_wildcard(text: str) -> bool:
    """True for ``*``, ``?`` or ``[`` anywhere in the text."""
    return _WILDCARD.search(text) is not None


def before_wildcards(pattern: ObjectPath) -> ObjectPath:
    """Return the prefix below which everything is that matches: the parts before the first with a wildcard."""
    parts = pattern.key.split("/")
    fixed = next((number for number, part in enumerate(parts) if has_wildcard(part)), len(parts))
    return ObjectPath(pattern.scheme, pattern.bucket, "/".join(parts[:fixed]))


def fits(key: str, pattern: str) -> bool:
    """True if the whole key matches; ``**`` stands for any number of parts, also none."""
    return _fits(key.split("/"), pattern.split("/"))


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted or not parts:
        return not parts and all(part == "**" for part in wanted)
    if wanted[0] == "**":
        return _fits(parts, wanted[1:]) or _fits(parts[1:], wanted)
    return fnmatchcase(parts[0], wanted[0]) and _fits(parts[1:], wanted[1:])
