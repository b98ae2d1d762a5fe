"""Entries of a manifest for the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from recipe_core.errors import DataError
from recipe_core.files import digest


def input_facts(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Name, size and time of change of every input: what a continued run compares."""
    return [{"path": str(p), "bytes": p.stat().st_size, "changed": p.stat().st_mtime_ns} for p in paths]


def sha256(path: Path) -> str:
    """Hash of a file, read in pieces.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return digest(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def hashed(facts: Sequence[Mapping[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    """Start to hash the inputs in a thread, while others read them.

    Args:
        facts: of the inputs, by :func:`input_facts`.

    Returns:
        What waits for the thread and gives the manifest's entry of each input: path, bytes and SHA-256. It raises a
        DataError where an input cannot be read, or is no longer what ``facts`` say.
    """
    found: list[str | DataError] = []

    def work() -> None:
        for fact in facts:
            try:
                found.append(sha256(Path(fact["path"])))
            except DataError as error:
                found.append(error)

    # A daemon: a preparation that fails does not wait for hashes that nobody will write.
    thread = Thread(target=work, name="input hashes", daemon=True)
    thread.start()

    def entries() -> list[dict[str, Any]]:
        thread.join()
        made = []
        for fact, value in zip(facts, found, strict=True):
            path = Path(fact["path"])
            if not path.exists() or input_facts([path]) != [fact]:
                raise DataError(f"{path}: changed while it was read; prepare it again")
            if isinstance(value, DataError):
                raise value
            made.append({"path": fact["path"], "bytes": fact["bytes"], "sha256": value})
        return made

    return entries
