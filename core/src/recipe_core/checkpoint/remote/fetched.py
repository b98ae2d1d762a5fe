"""Runs and checkpoints in object storage, downloaded for commands that read them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from recipe_core.checkpoint.manifest import NAME, STEP
from recipe_core.checkpoint.remote import checkpoints as remote
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.checkpoint.remote.opened import OWNER, files_of_run, is_plain
from recipe_core.errors import CheckpointError
from recipe_core.files import aside, disk_error, home, remove, require_space
from recipe_core.files.objects import ObjectMissingError, ObjectStat

KEPT = 50 * 10**9
"""Bytes of downloads that the cache keeps at most; those that were not used for the longest time are removed."""
_IN_USE = 3600.0
"""Seconds since its last use for which a download is not removed."""
_WITH_WEIGHTS = re.compile(r"(job\.yaml|tokenizer/.*)")
"""Files of a run, besides a checkpoint, that commands about its model read."""
_WITHOUT_WEIGHTS = re.compile(r"(?!checkpoints/|logs/).*")


def fetched(address: str, show: Callable[[str], None], *, weights: bool = True, foreign: bool = True) -> Path:
    """Download a run, a checkpoint or a file into the cache, unless it is there, and return its path.

    Of a run, the newest committed checkpoint is downloaded; without ``weights``, none, and all other files but logs.
    With ``foreign``, other files are downloaded too. The name of the path is that of the address. ``show`` takes a line
    for the user.

    Raises:
        CheckpointError: there is nothing at the address, or a checkpoint that was not uploaded to its end.
        ObjectError: the storage refuses it, or does not answer.
        DiskError: the cache cannot be written.
    """
    objects = Objects.at(address)
    parent = objects.path.parent
    if objects.path.name == remote.FOLDER and parent.key and Objects(parent).read(OWNER) is not None:
        return fetched(str(parent), show) / remote.FOLDER
    listed = _listed(objects)
    if not foreign and not {NAME, OWNER, remote.UPLOAD} & listed.keys():
        raise CheckpointError(
            f"{objects.address}: expected the address of token files, a run or a checkpoint; there is none of these"
        )
    if not listed:
        return _one_file(objects, show)
    names = _wanted(objects, listed, weights)
    # a list may be older than a manifest
    return _cached(objects, {name: listed.get(name) or (objects.path / name).stat() for name in names}, show)


def _one_file(objects: Objects, show: Callable[[str], None]) -> Path:
    path = objects.path
    try:
        stat = path.stat()
    except ObjectMissingError as error:
        text = f"{path}: there is nothing; expected the address of a run, a checkpoint or a file"
        raise CheckpointError(text) from error
    return _cached(Objects(path.parent), {path.name: stat}, show) / path.name


def _wanted(objects: Objects, listed: Mapping[str, ObjectStat], weights: bool) -> list[str]:
    if NAME in listed:
        manifest = remote.parse_manifest(objects.read(NAME) or b"", objects.path.name)
        return [NAME, *manifest.files]
    if STEP.fullmatch(objects.path.name) or remote.UPLOAD in listed:
        raise CheckpointError(
            f"{objects.address}: has no {NAME}, so it was not uploaded to its end; use another checkpoint of the run"
        )
    if OWNER not in listed:
        return [name for name in listed if is_plain(name)]
    pattern = _WITH_WEIGHTS if weights else _WITHOUT_WEIGHTS
    names = [name for name in listed if is_plain(name) and pattern.fullmatch(name)]
    for newest, manifest in remote.committed(objects) if weights else ():
        folder = f"{remote.FOLDER}/{newest}"
        names += [f"{folder}/{NAME}", *(f"{folder}/{name}" for name in manifest.files)]
        break
    return names


def _listed(objects: Objects) -> dict[str, ObjectStat]:
    # of a run without its checkpoints, which may be many
    if objects.read(OWNER) is None:
        return objects.below()
    return files_of_run(objects) | {OWNER: ObjectStat(0, "")}


def _cached(objects: Objects, entries: Mapping[str, ObjectStat], show: Callable[[str], None]) -> Path:
    facts = [objects.address, *([name, entry.size, entry.etag] for name, entry in sorted(entries.items()))]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    place = home() / "fetched" / digest
    folder = place / (objects.path.name or objects.path.bucket)
    try:
        if not folder.is_dir():
            _download(objects, entries, folder, show)
        os.utime(place)
        _prune(place.parent)
    except OSError as error:
        raise disk_error(error, folder) from error
    return folder


def _download(
    objects: Objects, entries: Mapping[str, ObjectStat], folder: Path, show: Callable[[str], None]
) -> None:  # fmt: skip
    size = sum(entry.size for entry in entries.values())
    folder.parent.mkdir(parents=True, exist_ok=True)
    require_space(folder.parent, size, f"downloading {objects.address}")
    show(f"{objects.address}: {len(entries):,} files, {size / 1e6:,.1f} MB, are downloaded to {folder}")
    part = aside(folder)
    try:
        for name, entry in entries.items():
            objects.download(name, part / name, entry.size)
        if not folder.is_dir():  # else another process was faster
            part.replace(folder)
    finally:
        remove(part)


def _prune(cache: Path) -> None:
    used = {place: place.stat().st_mtime for place in cache.iterdir() if place.is_dir()}
    sizes = {place: sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) for place in used}
    total = sum(sizes.values())
    for place in sorted(used, key=used.__getitem__):
        if total > KEPT and time.time() - used[place] > _IN_USE:
            remove(place)
            total -= sizes[place]
