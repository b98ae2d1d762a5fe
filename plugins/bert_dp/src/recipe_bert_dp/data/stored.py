"""Checks of an HDF5 file before its arrays are read, so that a damaged header cannot exhaust memory."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

import h5py

from recipe_core.errors import DataError

MOST_COMPRESSED = 2000
"""Maximum compression ratio: deflate's is 1,032, and a chunk has some overhead."""
MOST_CHUNK = 128 << 20
"""Maximum bytes per chunk, which HDF5 decompresses as a whole."""
MOST_PER_ROW = 1 << 20
"""Maximum numbers per row."""


def require_regular(path: Path) -> None:
    """Require a regular file: reading a pipe might never end, and a device has no size.

    Raises:
        DataError: it is something else.
        OSError: it is missing or not accessible.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError(f"{path}: is no regular file, so it is no shard")


def problems_of(file: h5py.File, names: Iterable[str]) -> list[str]:
    """One message for each array whose values are not in the file, or fewer than its shape has."""
    return [f"{name} {problem}" for name in names if (problem := _problem(file, name))]


def _problem(file: h5py.File, name: str) -> str:
    if isinstance(file.get(name, getlink=True), h5py.ExternalLink):
        return "is a link to another file"
    try:
        array = file[name]
    except (KeyError, OSError, RuntimeError) as error:
        return f"cannot be opened ({error})"
    if not isinstance(array, h5py.Dataset) or array.shape is None:
        return "is no array"
    if array.external or array.is_virtual:
        return "has its values in other files"
    if array.ndim > 1 and max(array.shape[1:]) > MOST_PER_ROW:
        return f"has the shape {list(array.shape)}, of more than {MOST_PER_ROW:,} numbers a row"
    if array.chunks and array.dtype.itemsize * _product(array.chunks) > MOST_CHUNK:
        return f"has chunks of the shape {list(array.chunks)}, of more than {MOST_CHUNK >> 20} MiB"
    stored = array.id.get_storage_size()
    if array.nbytes > MOST_COMPRESSED * (stored + 4096):
        return f"has the shape {list(array.shape)}, and {stored:,} bytes of it were written"
    return ""


def _product(sizes: Iterable[int]) -> int:
    product = 1
    for size in sizes:  # Python integers, which do not overflow
        product *= int(size)
    return product
