"""Copies of small objects in the cache of this machine, each downloaded once for each of its versions."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

from recipe_core.files import home, load_or_build
from recipe_core.files.objects.address import ObjectPath, ObjectStat
from recipe_core.files.objects.failures import ObjectMissingError
from recipe_core.files.objects.transfers import download


def local_file(place: Path | ObjectPath, stat: ObjectStat | None = None) -> Path | None:
    """Return the path of a file, or of a copy of an object; None if there is no such file or object.

    Args:
        place: a path, or an address.
        stat: of the object, if it is known; the copy is of exactly this version.

    Raises:
        ObjectError: the object cannot be read.
        DiskError: the cache cannot be written.
    """
    if isinstance(place, Path):
        return place if place.is_file() else None
    try:
        known = stat or place.stat()
    except ObjectMissingError:
        return None
    version = sha256(f"{place} {known.etag} {known.size}".encode()).hexdigest()[:24]
    folder = home() / "objects" / version
    # An error of the storage is none of the copy, which would be built once more.
    return load_or_build(
        folder / _safe(place.name), lambda path: _checked(path, known), lambda part: download(place, part, known)
    )


def _checked(path: Path, stat: ObjectStat) -> Path:
    if path.stat().st_size != stat.size:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, expected {stat.size}")
    return path


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+-]", "_", name)
