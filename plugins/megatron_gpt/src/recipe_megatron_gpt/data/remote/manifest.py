"""The manifest of a data set in object storage, and the comparison of its objects with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from recipe_core.data.prepare import file_problems, read_manifest, without_hashes
from recipe_core.data.prepare.manifest import NAME
from recipe_core.files.objects import ObjectMissingError, ObjectPath
from recipe_core.files.objects.copies import local_file
from recipe_core.files.objects.ranges import pieces
from recipe_megatron_gpt.data.header import Place


def manifest_of(folder: Place) -> dict[str, Any]:
    """The manifest in a folder or below an address; empty without one.

    Raises:
        DataError: it is damaged.
    """
    copy = local_file(folder / NAME)
    return {} if copy is None else read_manifest(copy.parent)


def problems_in(folder: Place, manifest: Mapping[str, Any]) -> list[str]:
    """One message for each file or object that differs from its entry; reads them completely."""
    if isinstance(folder, Path):
        return file_problems(folder, dict(manifest))
    return list(_problems(folder, manifest))


def hashes_missing(folder: Place) -> str:
    """A message if there are no hashes; else empty."""
    if isinstance(folder, Path):
        return without_hashes(folder)
    return "" if manifest_of(folder).get("files") else f"there is no {NAME} with hashes below {folder}"


def _problems(folder: ObjectPath, manifest: Mapping[str, Any]) -> Iterator[str]:
    for name, facts in manifest.get("files", {}).items():
        place = folder / name
        try:
            stat = place.stat()
        except ObjectMissingError:
            yield f"{place}: is missing"
            continue
        if stat.size != facts["bytes"]:
            yield f"{place}: has {stat.size:,} bytes instead of {facts['bytes']:,}"
            continue
        digest = sha256()
        for piece in pieces(0, stat.size):
            digest.update(place.read_range(*piece, stat.etag))
        if digest.hexdigest() != facts["sha256"]:
            yield f"{place}: does not hold the bytes that were written (SHA-256 differs)"
