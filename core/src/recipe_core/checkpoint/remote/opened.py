"""From the address of a run to its working folder: probed, locked, and with the files of the run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from recipe_core.checkpoint.remote import lock
from recipe_core.checkpoint.remote import record as records
from recipe_core.checkpoint.remote.checkpoints import FOLDER
from recipe_core.checkpoint.remote.mirror import Mirror
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.checkpoint.remote.record import StoredRun, working_folder
from recipe_core.errors import CheckpointError, ConfigError, LaunchError, RecipeError
from recipe_core.files import aside, disk_error, remove
from recipe_core.files.objects import ObjectError, ObjectStat

OWN = ".recipe/"
"""Prefix of the objects that are no copies of files."""
OWNER = f"{OWN}owner.json"
_PATIENCE = 300.0
"""Seconds that the other ranks wait for rank 0."""
Show = Callable[[str], None]


@contextmanager
def opened(address: str, show: Show) -> Iterator[Path]:
    """Yield the working folder of the run at ``address``, with its files but for those of checkpoints.

    One process of a run calls it, before all others. The address is locked until the block ends; then all files that
    have changed are copied there. ``show`` takes lines for the user.

    Raises:
        ConfigError: there is something else, another process trains there, or obstore is not installed.
        ObjectError: there are no credentials, the bucket is missing or access is denied; or the last copy failed.
        DiskError: the working folder cannot be written.
    """
    objects = Objects.at(address)
    _require_access(objects)
    folder = working_folder(objects.address)
    token = lock.acquire(objects, folder, show)
    try:
        new = _owner(objects) is None
        record = replace(_prepare(objects, folder, show), lock=token)
        records.write(folder, record)
        show(f"{objects.address}: the working folder on this machine is {folder}")
        try:
            yield folder
        except BaseException:
            with suppress(RecipeError):  # the first error is the one to report
                _close(objects, folder, token, new)
            raise
        _close(objects, folder, token, new)
    finally:
        with suppress(RecipeError):
            lock.release(objects, token)


def awaited(address: str) -> Path:
    """Return the working folder once the process that called :func:`opened` has prepared it.

    Raises:
        LaunchError: it did not within five minutes.
    """
    objects = Objects.at(address)
    folder, deadline = working_folder(objects.address), time.monotonic() + _PATIENCE
    while True:
        record = records.read(folder)
        holder = lock.holder_of(objects) if record is not None and record.lock else None
        if record is not None and holder is not None and holder.token == record.lock:
            return folder
        if time.monotonic() > deadline:
            raise LaunchError(
                f"{objects.address}: rank 0 has not prepared {folder}, or this machine does not see it; set "
                f"{records.WORK} to a folder on a file system that all machines share"
            )
        time.sleep(0.5)


def require_run(objects: Objects) -> None:
    """Check that there is a run at the address.

    Raises:
        CheckpointError: there is none.
    """
    if _owner(objects) is None:
        raise CheckpointError(f"{objects.address}: there is no run; name a recipe, and the address as --out")


def _require_access(objects: Objects) -> None:
    name, content = f"{OWN}probe-{uuid4().hex}", b"may be deleted\n"
    try:
        objects.write(name, content)
        objects.read(name)
        objects.delete(name)
    except ObjectError as error:
        text = f"--out: a small object could not be written, read and deleted below {objects.address}. {error}"
        raise type(error)(text) from error


def _prepare(objects: Objects, folder: Path, show: Show) -> StoredRun:
    record, owner = records.read(folder), _owner(objects)
    if record is not None and record.address != objects.address:
        record = None
    if owner is None:
        _require_new(objects, folder)
        return _own(objects, folder, record)
    if record is not None and record.working == owner:
        return record
    if folder.exists():
        former = aside(folder, "former")
        former = former.with_name(former.name[1:])
        folder.replace(former)
        show(f"{objects.address}: the run went on elsewhere; what this machine had of it is {former}, to be removed")
    _download(objects, folder)
    return _own(objects, folder, None)


def _require_new(objects: Objects, folder: Path) -> None:
    if names := [name for name in objects.below() if not name.startswith(OWN)]:
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        raise ConfigError(
            f"--out: {objects.address} is not empty and holds no run ({names[0]}{more}); give another address"
        )
    if any((folder / "checkpoints").glob("step-*")):
        raise ConfigError(
            f"--out: {objects.address} is empty, and its working folder {folder} has checkpoints; copy the run back, "
            "remove the folder to begin anew, or give another address"
        )


def _own(objects: Objects, folder: Path, record: StoredRun | None) -> StoredRun:
    record = record or StoredRun(address=objects.address, working=uuid4().hex)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder, "cannot be made", f"set {records.WORK} to another folder") from error
    records.write(folder, record)
    objects.write(OWNER, json.dumps({"working": record.working}).encode() + b"\n")
    return record


def _owner(objects: Objects) -> str | None:
    content = objects.read(OWNER)
    try:
        return None if content is None else str(json.loads(content)["working"])
    except (ValueError, TypeError, KeyError):
        return ""  # of none that we know


def files_of_run(objects: Objects) -> dict[str, ObjectStat]:
    """Return the objects of a run that are copies of its files, checkpoints excepted, by name."""
    found = objects.files()
    for folder in objects.folders(""):
        if folder != FOLDER and not folder.startswith("."):
            found |= objects.below(folder)
    return {name: entry for name, entry in found.items() if is_plain(name)}


def _download(objects: Objects, folder: Path) -> None:
    part = aside(folder)
    try:
        part.mkdir(parents=True)
        for name, entry in files_of_run(objects).items():
            objects.download(name, part / name, entry.size)
        part.replace(folder)
    except OSError as error:
        raise disk_error(error, folder, remedy=f"set {records.WORK} to another folder") from error
    finally:
        remove(part)


def is_plain(name: str) -> bool:
    """True if the name of an object can be that of a file below a folder, and is not hidden."""
    return "\\" not in name and not any(part.startswith(".") or not part for part in name.split("/"))


def _close(objects: Objects, folder: Path, token: str, new: bool) -> None:
    lock.require(objects, token)
    if new and not any(not path.name.startswith(".") for path in folder.glob("*")):  # it failed before it wrote a file
        objects.delete(OWNER)
        remove(folder / records.FILE)
        with suppress(OSError):
            folder.rmdir()
    elif folder.is_dir():
        Mirror(objects, folder).copy()
