"""Shapes of shards, read from their heads once per machine and state of the file.

A run asks for them in its launcher, in every process, and at its end; opening a thousand HDF5 files takes seconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple
from hashlib import blake2b
from pathlib import Path

from recipe_bert_dp.data import shards
from recipe_bert_dp.data.shards import Shape
from recipe_core.errors import DataError, DiskError
from recipe_core.files import home, write_text
from recipe_core.files.documents import DocumentError, read_json

State = tuple[int, ...]
"""Device, inode, size, and the times of the last change of content and of anything: a write changes one of them."""
MANY = 32
"""So many shards are worth a file in the cache."""

_known: dict[str, tuple[State, Shape]] = {}
"""Heads that this process has read, by absolute path."""


def shapes(paths: Iterable[Path]) -> dict[Path, Shape | DataError]:
    """The shape of each shard, or what is wrong with it.

    A shard is opened if nobody on this machine has seen it in its present state, and then checked as
    :func:`recipe_bert_dp.data.shards.shape_of` does it. Damage behind the head shows when rows are read.
    """
    asked = {path: str(path.absolute()) for path in paths}
    store = _store(asked.values())
    if len(asked) >= MANY and any(name not in _known for name in asked.values()):
        _known.update(_stored(store))
    found: dict[Path, Shape | DataError] = {}
    news = False
    for path, name in asked.items():
        state = _state(path)
        if state is None or name not in _known or _known[name][0] != state:
            try:
                with shards.opened(path) as file:
                    shape = shards.shape_of(file, path)
            except DataError as error:
                _known.pop(name, None)
                found[path] = error
                continue
            _known[name] = state or (), shape
            news = True
        found[path] = _known[name][1]
    if news and len(asked) >= MANY:
        lines = {name: [*_known[name][0], *astuple(_known[name][1])] for name in asked.values() if name in _known}
        with suppress(DiskError):  # a cache that cannot be written costs time and nothing else
            write_text(store, json.dumps(lines))
    return found


def _state(path: Path) -> State | None:
    try:
        found = path.stat()
    except OSError:
        return None  # what is wrong with it shows when it is opened
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _store(names: Iterable[str]) -> Path:
    digest = blake2b(b"\0".join(map(os.fsencode, names)), digest_size=12).hexdigest()
    return home() / "bert_hdf5" / f"heads-{digest}.json"


def _stored(store: Path) -> dict[str, tuple[State, Shape]]:
    """The content of a file of the cache; empty where there is none, or none that this version wrote."""
    try:
        found = read_json(store)
        lines = {name: (tuple(line[:5]), Shape(*line[5:])) for name, line in found.items()}
    except (OSError, DocumentError, AttributeError, LookupError, TypeError):
        return {}
    return lines if all(type(number) is int for line in found.values() for number in line) else {}
