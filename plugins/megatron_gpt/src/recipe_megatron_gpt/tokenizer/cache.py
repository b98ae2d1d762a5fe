"""Cached facts about tokenizers: reading one with two libraries takes half a second.

The name of an entry is a hash of everything that it depends on, so entries do not become outdated.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipe_core import DiskError, atomic_file, write_text
from recipe_core.files import home

_VERSION = 4
"""Increase it when a change in this package changes the facts."""
_LIBRARIES = ("tokenizers", "gigatoken")


@dataclass(frozen=True)
class CacheEntry:
    """An entry of the cache."""

    facts: dict[str, Any]
    data: bytes
    path: Path
    """The file that holds ``data``."""


def key_of(*parts: str | bytes) -> str:
    """The key of an entry that depends on ``parts`` and the versions of the tokeniser libraries."""
    digest = blake2b(digest_size=16)
    for part in (str(_VERSION), *map(_version, _LIBRARIES), *parts):
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def recall(key: str) -> CacheEntry | None:
    """The entry; None if there is none, or it is damaged."""
    facts, path = _paths(key)
    try:
        content = json.loads(facts.read_bytes())
        data = path.read_bytes()
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.pop("blake2b", "") != _digest(content, data):
        return None
    return CacheEntry(content, data, path)


def remember(key: str, facts: dict[str, Any], data: bytes = b"") -> None:
    """Write an entry; a cache that cannot be written is ignored."""
    description, path = _paths(key)
    with suppress(OSError, DiskError):
        with atomic_file(path) as part:
            part.write_bytes(data)
        write_text(description, json.dumps({**facts, "blake2b": _digest(facts, data)}))


def _paths(key: str) -> tuple[Path, Path]:
    folder = home() / "tokenizers"
    return folder / f"{key}.json", folder / f"{key}.data"


def _digest(facts: dict[str, Any], data: bytes) -> str:
    digest = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16)
    digest.update(data)
    return digest.hexdigest()


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
