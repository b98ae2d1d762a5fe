"""Arrays that are built once per machine, cached on disk and memory mapped by every process."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from glob import escape
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recipe_core import DataError, load_or_build
from recipe_core.files import remove, require_space
from recipe_megatron_gpt.data.arrays.lengths import SMALL
from recipe_megatron_gpt.data.arrays.mapped import Access, mapped

VERSION = 1
"""Increase it when a change here or in recipe_index changes the order of samples: old files are then ignored."""
_DIGEST = 12
"""Bytes of the hash in a file name."""


def cached_array(
    cache: Path, name: str, made_from: list[Any], entries: int, build: Callable[[], NDArray[Any]],
    access: Access = "random", *, replaces: bool = False,
) -> NDArray[Any]:  # fmt: skip
    """The array of ``build()``, memory mapped from ``cache`` unless it is small.

    Args:
        cache: folder of this machine.
        name: start of the file name, for people.
        made_from: everything that the array depends on, as plain data; the file name ends with its hash, so that other
            data or settings never match an old file.
        entries: approximate number of entries.
        access: expected access pattern.
        replaces: a new file replaces those of this name that were made from something else.

    Raises:
        DataError: there is too little main memory to build it.
        DiskError: the cache cannot be written.
    """
    if entries < SMALL:
        return build()
    path = _path(cache, name, made_from)

    def save(part: Path) -> None:
        try:
            array = build()
        except MemoryError as error:
            raise DataError(
                f"{path}: the main memory is too small to build this index of {entries:,} entries ({error}); set "
                "data.order=fast, whose indices are those of one epoch, or build it on a larger machine"
            ) from error
        if replaces:
            _forget_others(cache, name, path)
        require_space(cache, array.nbytes, f"the index {path.name}")
        with part.open("wb") as out:
            np.save(out, array, allow_pickle=False)

    return load_or_build(path, partial(_map, access=access), save)


def forget(cache: Path, name: str, made_from: list[Any]) -> None:
    """Remove the array from ``cache``. Processes that have it mapped keep it; the next call builds it again."""
    remove(_path(cache, name, made_from))


def _forget_others(cache: Path, name: str, current: Path) -> None:
    for path in cache.glob(f"{escape(name)}-{'?' * 2 * _DIGEST}.npy"):
        if path != current:
            remove(path)


def _path(cache: Path, name: str, made_from: list[Any]) -> Path:
    digest = blake2b(json.dumps([VERSION, name, made_from]).encode(), digest_size=_DIGEST).hexdigest()
    return cache / f"{name}-{digest}.npy"


def _map(path: Path, access: Access) -> NDArray[Any]:
    with path.open("rb") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError(f"{path}: of another version of NumPy's files")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        offset = file.tell()
    flat = mapped(path, dtype, offset=offset, access=access)
    if flat.size != prod(shape):
        raise ValueError(f"{path}: {flat.size} entries, expected {prod(shape)}")
    return flat.reshape(shape)
