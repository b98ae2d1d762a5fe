"""Shapes of shards, read from their headers and cached per machine until a file changes.

A run needs them in its launcher, in every process, and at its end; opening a thousand HDF5 files takes seconds.
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
from recipe_bert_dp.data.shards import ShardShape
from recipe_core.errors import DataError, DiskError
from recipe_core.files import home, write_text
from recipe_core.files.documents import DocumentError, read_json

FileState = tuple[int, ...]
"""Device, inode, size, mtime and ctime: a write changes one of them."""
MANY = 32
"""Number of shards from which the cache is written to disk."""

_cache: dict[str, tuple[FileState, ShardShape]] = {}
"""Headers that this process has read, by absolute path."""


def shapes(paths: Iterable[Path]) -> dict[Path, ShardShape | DataError]:
    """The shape of each shard, or its problem.

    Only shards that are new or changed since the last call on this machine are opened, and checked by
    :func:`recipe_bert_dp.data.shards.shape_of`. Damage after the header is found when rows are read.
    """
    names = {path: str(path.absolute()) for path in paths}
    store = _store(names.values())
    if len(names) >= MANY and any(name not in _cache for name in names.values()):
        _cache.update(_stored(store))
    results: dict[Path, ShardShape | DataError] = {}
    changed = False
    for path, name in names.items():
        state = _state(path)
        if state is None or name not in _cache or _cache[name][0] != state:
            try:
                with shards.opened(path) as file:
                    shape = shards.shape_of(file, path)
            except DataError as error:
                _cache.pop(name, None)
                results[path] = error
                continue
            _cache[name] = state or (), shape
            changed = True
        results[path] = _cache[name][1]
    if changed and len(names) >= MANY:
        lines = {name: [*_cache[name][0], *astuple(_cache[name][1])] for name in names.values() if name in _cache}
        with suppress(DiskError):  # without the cache, the next call only takes longer
            write_text(store, json.dumps(lines))
    return results


def _state(path: Path) -> FileState | None:
    try:
        stat = path.stat()
    except OSError:
        return None  # opening it reports the problem
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _store(names: Iterable[str]) -> Path:
    digest = blake2b(b"\0".join(map(os.fsencode, names)), digest_size=12).hexdigest()
    return home() / "bert_hdf5" / f"heads-{digest}.json"


def _stored(store: Path) -> dict[str, tuple[FileState, ShardShape]]:
    # Empty if the file is missing, damaged or of another version.
    try:
        content = read_json(store)
        lines = {name: (tuple(line[:5]), ShardShape(*line[5:])) for name, line in content.items()}
    except (OSError, DocumentError, AttributeError, LookupError, TypeError):
        return {}
    return lines if all(type(number) is int for line in content.values() for number in line) else {}
