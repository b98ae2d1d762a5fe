"""Atomic writes, files that are built once per machine, and errors of disks and paths."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar
from uuid import uuid4

from recipe_core.errors import ConfigError, DataError, DiskError, DiskFullError

if TYPE_CHECKING:
    from recipe_core.files.objects.reading import ObjectFile

_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:/|://")
"""``s3://bucket/x``, and ``s3:/bucket/x``, which ``pathlib`` makes of it."""


def remote(place: str | Path) -> str | None:
    """Return the problem with ``place`` if it names a remote place; else None."""
    if not _REMOTE.search(str(place)):
        return None
    shown = re.sub(r":/(?=[^/])", "://", str(place), count=1)
    if "file:/" in shown:
        return f"expected a path, got {shown!r}; write it without file://"
    return (
        f"expected a path on this machine, got {shown!r}: remote places are neither read nor written. Mount it, or "
        "name a local path and copy before the run (input) or after it (output)"
    )


def require_local(place: str | Path, name: str) -> None:
    """Raise ConfigError, beginning with ``name``, if ``place`` is :func:`remote`."""
    if problem := remote(place):
        raise ConfigError(f"{name}: {problem}")


def home() -> Path:
    """Return the user's cache for prepared data and indices: ``$RECIPE_CACHE``, or the platform's cache folder."""
    import platformdirs

    place = os.environ.get("RECIPE_CACHE") or platformdirs.user_cache_dir("recipe")
    require_local(place, "RECIPE_CACHE")
    return Path(place)


def aside(path: Path, ending: str = "part") -> Path:
    """Return a unique hidden path next to ``path``, by whose name a leftover can be recognised."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.{ending}")


def final_name(name: str) -> str:
    """Return the name for which :func:`aside` made the hidden ``name``; any other name unchanged."""
    return re.sub(r"^\.(.+)\.[0-9a-f]{12}\.part$", r"\1", name)


def sync(path: Path) -> None:
    """Flush ``path`` (a file or a folder's entries) to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync a folder; they write its entries at once.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EBADF)):
            raise
    finally:
        os.close(handle)


def digest(path: Path | ObjectFile, check: Callable[[], object] = bool) -> str:
    """Return the SHA-256 of a file in hexadecimal, reading 1 MiB at a time; ``check`` is called before each."""
    sha256 = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            check()
            sha256.update(buffer[:count])
    return sha256.hexdigest()


def remove(path: Path) -> None:
    """Delete a file or a folder with its contents; ignore what is missing or cannot be deleted."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def exchange(first: Path, second: Path) -> bool:
    """Swap two paths of one disk atomically; False, with nothing done, if the system or the disk cannot."""
    import ctypes

    names, swap = (os.fsencode(first), os.fsencode(second)), 2  # RENAME_EXCHANGE and RENAME_SWAP
    try:
        if sys.platform == "darwin":
            return bool(ctypes.CDLL(None).renamex_np(*names, swap) == 0)
        here = -100  # AT_FDCWD
        return bool(ctypes.CDLL(None).renameat2(here, names[0], here, names[1], swap) == 0)
    except (AttributeError, OSError, TypeError):  # a C library without it, or none
        return False


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; rename it to ``path`` if the block succeeds, else remove it.

    Raises:
        DiskError: the disk is full or cannot be written; ``path`` is unchanged.
    """
    require_local(path, "output")
    part = aside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        for item in [part, *part.rglob("*")]:
            sync(item)
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        if not _about(error, path, part):
            raise  # for example, the block could not read its input
        raise disk_error(error, path, after="What was there before is untouched") from error
    finally:
        remove(part)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Like :func:`atomic_file`, for an empty folder; ``path`` must not exist when the block ends."""
    with atomic_file(path) as part:
        part.mkdir()
        yield part


def _about(error: OSError, path: Path, part: Path) -> bool:
    # The error names the path or a parent, or only writes fail this way.
    if error.filename is None:
        return is_full(error) or error.errno in (errno.EIO, errno.EROFS)
    named = Path(os.fsdecode(error.filename))
    return named in [path, *path.parents] or part in [named, *named.parents]


def disk_error(
    error: OSError, path: Path, doing: str = "cannot be written", remedy: str = "choose another folder",
    again: str = "", after: str = "",
) -> DiskError:  # fmt: skip
    """Return our error for an OSError of writing ``path``; a full disk has its own type and advice.

    Args:
        error: of the system.
        path: the final one or a temporary one for it.
        doing: the text before the reason.
        remedy: advice for any reason; for a file in the cache, it is replaced by RECIPE_CACHE.
        again: advice for after making room.
        after: a further sentence.
    """
    path = Path(*map(final_name, path.parts))
    if path.absolute().is_relative_to(home().absolute()):
        remedy = "set RECIPE_CACHE to another folder"
    if is_full(error):
        remedy = f"{make_room(error, path)}{again} or {remedy}"
    kind = DiskFullError if is_full(error) else DiskError
    return kind(f"{path}: {doing} ({reason(error, path)}); {remedy}{'. ' * bool(after)}{after}")


_PATHS = {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "fix the symbolic links",
    errno.EACCES: "have its owner, or that of its folders, allow it",
    errno.ESTALE: "mount its file system again",
}


def path_error(error: OSError) -> ConfigError | None:
    """Return our error for a path that cannot be used at all; None for any other error."""
    if error.errno not in _PATHS or not error.filename:
        return None
    return ConfigError(f"{os.fsdecode(error.filename)}: cannot be used ({error.strerror}); {_PATHS[error.errno]}")


def is_full(error: OSError) -> bool:
    """Return True if the disk or a quota is full, or the file is too large."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason(error: OSError, path: Path) -> str:
    """Return the system's message for an error of writing ``path``; it adds if the disk is out of inodes."""
    message = error.strerror or str(error)
    return (
        f"{message}: no inodes are free, the disk has as many files as it can" if _no_inodes(error, path) else message
    )


def make_room(error: OSError, path: Path) -> str:
    """Return advice for a full disk, as the beginning of a sentence."""
    return "remove some files" if _no_inodes(error, path) else "free some space"


def _no_inodes(error: OSError, path: Path) -> bool:
    """Return True if the disk of ``path`` is out of inodes, not of bytes."""
    if error.errno != errno.ENOSPC:
        return False
    try:
        disk = os.statvfs(_existing(path))
    except (AttributeError, OSError):  # Windows
        return False
    return bool(disk.f_files) and disk.f_favail * 2 <= disk.f_bavail and disk.f_favail < 16


def _existing(path: Path) -> Path:
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8")


def require_space(folder: Path, needed: int, purpose: str) -> None:
    """Raise DiskFullError unless ``needed`` bytes are free for ``folder``; ``purpose`` begins the message."""
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise DiskFullError(
            f"{folder}: {purpose} needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free; "
            "free some space or choose another folder"
        )


def lock_now(path: Path) -> IO[bytes] | None:
    """Open ``path`` and lock it until it is closed or this process ends; None if another process holds the lock.

    If the system or the disk has no such locks, the file is returned unlocked.
    """
    file = path.open("ab")
    try:
        import fcntl

        # A lock of the process: its children do not keep it after its end.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    except (ImportError, OSError):
        pass
    return file


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Build the file ``path`` with ``build(temporary path)`` unless it exists; safe for several processes at once.

    One process takes a lock next to ``path`` and builds, the others wait for the file. Each machine builds a file that
    it does not see, so that local disks work. Other content needs another name, with a hash of the inputs, for example.

    Raises:
        DiskError: the folder of ``path`` cannot be written.
    """
    from filelock import FileLock

    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.name}.lock")).acquire()
    except OSError as error:
        raise disk_error(error, path) from error
    with lock:
        if not path.exists():
            with atomic_file(path) as part:
                build(part)
    return path


T = TypeVar("T")
_DAMAGE = (OSError, ValueError, EOFError, DataError)


def load_or_build(path: Path, load: Callable[[Path], T], build: Callable[[Path], None]) -> T:
    """Return ``load(path)``; build ``path`` (a file or a folder) first if it is missing or damaged.

    If several processes find the same damage, such as the ranks of a machine at their start, one of them rebuilds the
    file: each takes a lock and tries to load again first.
    """
    from filelock import FileLock

    build_once(path, build)
    try:
        return load(path)
    except _DAMAGE:
        with FileLock(path.with_name(f".{path.name}.mend.lock")):
            try:
                return load(path)
            except _DAMAGE:
                remove(path)
                build_once(path, build)
                return load(path)
