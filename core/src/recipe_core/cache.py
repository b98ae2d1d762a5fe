"""What is made once per machine from something else, and made again when it is found damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from recipe_core.errors import DataError
from recipe_core.files import build_once, remove

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
