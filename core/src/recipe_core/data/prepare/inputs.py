"""Manifest entries of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

from recipe_core.errors import DataError
from recipe_core.files import digest


def input_facts(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return path, size and modification time of every input; a continued run compares them."""
    return [{"path": str(p), "bytes": p.stat().st_size, "changed": p.stat().st_mtime_ns} for p in paths]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return digest(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def hashed(facts: Sequence[Mapping[str, Any]]) -> Callable[[], list[dict[str, Any]]]:
    """Start to hash the inputs in a thread.

    Args:
        facts: of the inputs, by :func:`input_facts`.

    Returns:
        A function that waits for the thread and returns the manifest's entry of each input: path, bytes and SHA-256. It
        raises a DataError if an input cannot be read, or no longer matches ``facts``.
    """
    results: list[str | DataError] = []

    def work() -> None:
        for fact in facts:
            try:
                results.append(sha256(Path(fact["path"])))
            except DataError as error:
                results.append(error)

    # A daemon thread: a preparation that fails does not wait for the hashes.
    thread = Thread(target=work, name="input hashes", daemon=True)
    thread.start()

    def wait() -> list[dict[str, Any]]:
        thread.join()
        entries = []
        for fact, value in zip(facts, results, strict=True):
            path = Path(fact["path"])
            if not path.exists() or input_facts([path]) != [fact]:
                raise DataError(f"{path}: changed while it was read; prepare it again")
            if isinstance(value, DataError):
                raise value
            entries.append({"path": fact["path"], "bytes": fact["bytes"], "sha256": value})
        return entries

    return wait
