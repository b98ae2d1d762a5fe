"""Cached facts about tokenizers: reading one with two libraries takes half a second.

The name of an entry is a hash of everything that it depends on, so entries do not become outdated.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipe_core import DiskError, write_text
from recipe_core.files import home

_VERSION = 5
"""Increase it when a change in this package changes the facts."""
_LIBRARIES = ("tokenizers", "gigatoken")


def key_of(*parts: str | bytes) -> str:
    """The key of an entry that depends on ``parts`` and the versions of the tokeniser libraries."""
    digest = blake2b(digest_size=16)
    for part in (str(_VERSION), *map(_version, _LIBRARIES), *parts):
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def recall(key: str) -> dict[str, Any] | None:
    """The entry; None if there is none, or it is damaged."""
    try:
        content = json.loads(_path(key).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.pop("blake2b", "") != _digest(content):
        return None
    return content


def remember(key: str, facts: dict[str, Any]) -> None:
    """Write an entry; a cache that cannot be written is ignored."""
    with suppress(OSError, DiskError):
        write_text(_path(key), json.dumps({**facts, "blake2b": _digest(facts)}))


def _path(key: str) -> Path:
    return home() / "tokenizers" / f"{key}.json"


def _digest(facts: dict[str, Any]) -> str:
    return blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).hexdigest()


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
