"""What was found out about a tokenizer, kept in the cache: reading one with two libraries takes half a second.

An entry is named by a hash of all that it depends on, so none is ever out of date.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from recipe_core.errors import DiskError
from recipe_core.files import home, write_text

_VERSION = 1
"""Raise it when a change in this package changes what would be found out."""
_LIBRARIES = ("tokenizers", "gigatoken")


def key_of(*parts: str | bytes) -> str:
    """The name of an entry that depends on ``parts`` and on the versions of the libraries that tokenise."""
    found = blake2b(digest_size=16)
    for part in (str(_VERSION), *map(_version, _LIBRARIES), *parts):
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def recall(key: str) -> dict[str, Any] | None:
    """The entry, if there is one that can be read."""
    try:
        found = json.loads(_path(key).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def remember(key: str, entry: dict[str, Any]) -> None:
    """Keep an entry, where the cache can be written."""
    with suppress(OSError, DiskError):
        path = _path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(entry))


def _path(key: str) -> Path:
    return home() / "tokenizers" / f"{key}.json"


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
