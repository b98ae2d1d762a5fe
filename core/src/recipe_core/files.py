"""Files that appear under their final name only when they are complete, and are built once per machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from recipe_core.errors import DiskError


def home() -> Path:
    """The user's cache for prepared data and indices: ``$RECIPE_CACHE``, or the platform's cache folder."""
    import platformdirs

    return Path(os.environ.get("RECIPE_CACHE") or platformdirs.user_cache_dir("recipe"))


def _aside(path: Path) -> Path:
    """A name beside ``path`` that no other process uses, and that says what it is when it is left over."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.part")


def sync(path: Path) -> None:
    """Have the kernel write ``path`` (a file or a folder's list of names) to its disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    part = _aside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        for item in [part, *part.rglob("*")]:
            sync(item)
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        raise DiskError(
            f"{path}: cannot be written ({error.strerror or error}); free some space or choose another folder. "
            "What was there before is untouched"
        ) from error
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one piece."""
    with atomic_file(path) as part:
        part.write_text(text, encoding="utf-8")


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise DiskError unless ``needed`` bytes are free where ``folder`` is or will be; ``what`` says what for."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < needed:
        raise DiskError(
            f"{folder}: {what} needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free; "
            "free some space or choose another folder"
        )


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Make the file ``path`` by ``build(temporary path)`` unless it is there; several processes may ask at once.

    Every machine builds what it lacks, so that a disk that only one node sees is no problem: whoever takes the lock
    beside ``path`` first builds, the others wait and find the file. Whoever needs other content uses another name
    (put a hash of what it was made from into it).
    """
    from filelock import FileLock

    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                with atomic_file(path) as part:
                    build(part)
    return path
