"""Files that appear under their final name only when they are complete, and are built once per machine."""

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
from typing import IO, TypeVar
from uuid import uuid4

from recipe_core.errors import ConfigError, DataError, DiskError, DiskFullError

_REMOTE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:/|://")
"""``s3://bucket/x``, and ``s3:/bucket/x``, which ``pathlib`` makes of it."""


def remote(place: str | Path) -> str | None:
    """The problem with ``place`` where it names something that is not on a disk of this machine; else None."""
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
    """Raise ConfigError, beginning with ``name``, where ``place`` is :func:`remote`."""
    if problem := remote(place):
        raise ConfigError(f"{name}: {problem}")


def home() -> Path:
    """The user's cache for prepared data and indices: ``$RECIPE_CACHE``, or the platform's cache folder."""
    import platformdirs

    place = os.environ.get("RECIPE_CACHE") or platformdirs.user_cache_dir("recipe")
    require_local(place, "RECIPE_CACHE")
    return Path(place)


def aside(path: Path, ending: str = "part") -> Path:
    """A hidden name beside ``path`` that no other process uses, and that says what it is when it is left over."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.{ending}")


def final_name(name: str) -> str:
    """The name for which :func:`aside` made the hidden ``name``; any other as it is."""
    return re.sub(r"^\.(.+)\.[0-9a-f]{12}\.part$", r"\1", name)


def sync(path: Path) -> None:
    """Have the kernel write ``path`` (a file or a folder's list of names) to its disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync a folder; they write its names at once.
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EBADF)):
            raise
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, reading 1 MiB at a time."""
    sha256 = hashlib.sha256()
    buffer = memoryview(bytearray(1 << 20))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            sha256.update(buffer[:count])
    return sha256.hexdigest()


def remove(path: Path) -> None:
    """Delete a file or a folder with all that is in it; what is not there, or cannot be deleted, is ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def exchange(one: Path, two: Path) -> bool:
    """Swap two names of one disk in a single step; False, with nothing done, where system or disk cannot."""
    import ctypes

    names, swap = (os.fsencode(one), os.fsencode(two)), 2  # RENAME_EXCHANGE and RENAME_SWAP
    try:
        if sys.platform == "darwin":
            return bool(ctypes.CDLL(None).renamex_np(*names, swap) == 0)
        here = -100  # AT_FDCWD
        return bool(ctypes.CDLL(None).renameat2(here, names[0], here, names[1], swap) == 0)
    except (AttributeError, OSError, TypeError):  # a C library without it, or none
        return False


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; move it there when the block ends well, else remove it.

    Raises:
        DiskError: the disk is full or cannot be written; ``path`` is what it was before.
    """
    with _atomic(path) as part:
        yield part


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """The same for a folder, which the block finds empty; ``path`` must not exist when the block ends."""
    with _atomic(path) as part:
        part.mkdir()
        yield part


@contextmanager
def _atomic(path: Path) -> Iterator[Path]:
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
            raise  # the block could not read its input, say
        raise disk_error(error, path, after="What was there before is untouched") from error
    finally:
        remove(part)


def _about(error: OSError, path: Path, part: Path) -> bool:
    """Return True if ``error`` came from writing ``path``: it names it or a folder above, or only writing fails so."""
    if error.filename is None:
        return is_full(error) or error.errno in (errno.EIO, errno.EROFS)
    named = Path(os.fsdecode(error.filename))
    return named in [path, *path.parents] or part in [named, *named.parents]


def disk_error(
    error: OSError, path: Path, doing: str = "cannot be written", way_out: str = "choose another folder",
    again: str = "", after: str = "",
) -> DiskError:  # fmt: skip
    """Return the error of ours for one of writing ``path``: a full disk has a type, and a way out, of its own.

    Args:
        error: the system's.
        path: as the user knows it.
        doing: why, in the words before the reason.
        way_out: advice that helps whatever the reason is; of a file in the cache, RECIPE_CACHE is named.
        again: advice for when there is room.
        after: a sentence that follows.
    """
    path = Path(*map(final_name, path.parts))
    if path.absolute().is_relative_to(home().absolute()):
        way_out = "set RECIPE_CACHE to another folder"
    remedy = f"{make_room(error, path)}{again} or {way_out}" if is_full(error) else way_out
    kind = DiskFullError if is_full(error) else DiskError
    return kind(f"{path}: {doing} ({reason(error, path)}); {remedy}{'. ' * bool(after)}{after}")


_PATHS = {
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "mend the symbolic links",
    errno.EACCES: "have its owner, or that of its folders, allow it",
    errno.ESTALE: "mount its file system again",
}


def path_error(error: OSError) -> ConfigError | None:
    """Return the error of ours for a path that nobody could use, whatever for; None for every other."""
    if error.errno not in _PATHS or not error.filename:
        return None
    return ConfigError(f"{os.fsdecode(error.filename)}: cannot be used ({error.strerror}); {_PATHS[error.errno]}")


def is_full(error: OSError) -> bool:
    """Return True if the disk, a quota or the longest file that is allowed is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def reason(error: OSError, path: Path) -> str:
    """The system's words for an error of writing ``path``, and what it does not say: that files are too many."""
    words = error.strerror or str(error)
    return f"{words}: no inodes are free, the disk has as many files as it can" if _no_inodes(error, path) else words


def make_room(error: OSError, path: Path) -> str:
    """Advice after a full disk, as the beginning of a sentence."""
    return "remove some files" if _no_inodes(error, path) else "free some space"


def _no_inodes(error: OSError, path: Path) -> bool:
    """True if the disk of ``path`` is full of files rather than of bytes."""
    if error.errno != errno.ENOSPC:
        return False
    try:
        disk = os.statvfs(_existing(path))
    except (AttributeError, OSError):  # Windows
        return False
    return bool(disk.f_files) and disk.f_favail * 2 <= disk.f_bavail and disk.f_favail < 16


def _existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that is there."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return there


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one piece."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8")


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise DiskFullError unless ``needed`` bytes are free where ``folder`` is or will be; ``what`` says what for."""
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        raise DiskFullError(
            f"{folder}: {what} needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free; "
            "free some space or choose another folder"
        )


def lock_now(path: Path) -> IO[bytes] | None:
    """Open ``path`` and lock it until it is closed or this process ends; None where another process holds the lock.

    A system that knows no such locks, or a disk that does not, lets everybody in.
    """
    file = path.open("ab")
    try:
        import fcntl

        # A lock of the process: others that it starts do not hold it on when it has ended.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.close()
        return None
    except (ImportError, OSError):
        pass
    return file


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Make the file ``path`` by ``build(temporary path)`` unless it is there; several processes may ask at once.

    Every machine builds the file that it lacks, so that a disk that only one node sees is no problem: the process that
    takes the lock beside ``path`` first builds, the others wait and find the file. Other content needs another name
    (put a hash of the inputs into it).

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
    """Give ``load(path)``, for which ``build`` makes ``path`` (a file or a folder) under a temporary name if it must.

    Processes that find the same damage at the same moment, as the ranks of a machine do when they start, agree on one
    of them to mend it: the others look again before they would throw away what it has just made.
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
