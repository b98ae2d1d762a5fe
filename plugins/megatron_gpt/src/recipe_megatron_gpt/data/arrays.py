"""Arrays that are built once per machine, kept in the cache and memory mapped by every process."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_core import load_or_build
from recipe_core.files import require_space

VERSION = 1
"""Raise it when a change here or in recipe_index changes the order of samples: old files are then left alone."""
SMALL = 100_000
"""Entries below which an array is built faster than its file would be opened."""


def cached_array(
    cache: Path, name: str, made_from: list[Any], entries: int, build: Callable[[], NDArray[Any]]
) -> NDArray[Any]:
    """The array of ``build()``, memory mapped from ``cache`` unless it is small.

    Args:
        cache: folder of this machine.
        name: starts the file's name, for people.
        made_from: everything that the array depends on, as plain data; a hash of it ends the file's name, so that
            other data or settings never meet an old file.
        entries: how many entries the array has, roughly.

    Raises:
        DiskError: the cache cannot be written.
    """
    if entries < SMALL:
        return build()
    digest = blake2b(json.dumps([VERSION, name, made_from]).encode(), digest_size=12).hexdigest()
    path = cache / f"{name}-{digest}.npy"

    def save(part: Path) -> None:
        array = build()
        require_space(cache, array.nbytes, f"the index {path.name}")
        with part.open("wb") as out:
            np.save(out, array, allow_pickle=False)

    return load_or_build(path, _map, save)


def _map(path: Path) -> NDArray[Any]:
    # A plain view: indexing the memmap class itself costs more than the reading.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
