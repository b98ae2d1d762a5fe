"""``manifest.json``: the inputs and settings of a prepared data set, and sizes and hashes of its files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from recipe_core.data.sealed import file_problem, sealed, unlisted, unsealed
from recipe_core.errors import DataError
from recipe_core.files import digest
from recipe_core.files.documents import read_text

NAME = "manifest.json"
_HALVES = re.compile("[\udc80-\udcff]+")
LOCK, JOURNAL = "lock", "journal.jsonl"
"""Files of a preparation under way. They may outlive it where the power failed just after the set got its name."""


def file_facts(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files in ``folder``: the ``files`` of a manifest."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)} for name in names}


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """A manifest as it is written, with a digest of itself; file names that are no text have U+FFFD in them."""
    text = _HALVES.sub(_as_utf8, json.dumps(dict(manifest), ensure_ascii=False))
    return json.dumps(sealed(json.loads(text)), indent=2, ensure_ascii=False) + "\n"


def _as_utf8(halves: re.Match[str]) -> str:
    """The text of bytes that the locale's encoding does not have, which Python writes as halves of surrogate pairs."""
    return halves.group().encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in ``folder``; empty where there is none, as in data sets that others made.

    Raises:
        DataError: it is damaged, or was changed after it was written.
    """
    path = folder / NAME
    try:
        content = unsealed(read_text(path))
        if not isinstance(content.get("files", {}), dict):
            raise TypeError("it does not hold what `recipe prepare` writes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is damaged ({error}); prepare the data set again") from error
    return content


def file_problems(folder: Path, manifest: Mapping[str, Any], beside: Sequence[str] = ()) -> list[str]:
    """One message for each file that is missing, holds other bytes, or is not listed.

    Args:
        folder: of the data set.
        manifest: what :func:`read_manifest` gave for it.
        beside: patterns of files that earlier releases wrote and did not list.
    """
    if "files" not in manifest:
        return []
    found = [
        (name, file_problem(folder / name, facts["bytes"], facts["sha256"]))
        for name, facts in manifest["files"].items()
    ]
    strays = [
        name
        for name in unlisted(folder, manifest["files"], NAME)
        if name not in (LOCK, JOURNAL) and not any(fnmatchcase(name, pattern) for pattern in beside)
    ]
    return [
        *(f"{folder / name}: {problem}" for name, problem in found if problem),
        *(f"{folder / name}: is not in the manifest; move it out of the folder" for name in strays),
    ]


def without_hashes(folder: Path) -> str:
    """The words of ``recipe verify`` for a data set that has no manifest; empty where there is one."""
    if (folder / NAME).is_file():
        return ""
    return f"there is no {NAME} with hashes in {folder}, so that a changed value that is possible cannot be seen"


def is_prepared(folder: Path) -> bool:
    """True if ``folder`` is a data set of ``recipe prepare``: a real folder with a manifest of ours in it.

    Others write files named ``manifest.json`` too.
    """
    try:
        manifest = {} if folder.is_symlink() else read_manifest(folder)
    except DataError:
        return False
    files = manifest.get("files", {}).values()
    ours = all(isinstance(facts, dict) and {"bytes", "sha256"} <= facts.keys() for facts in files)
    return bool(files) and ours and isinstance(manifest.get("kind"), str)


def foreign(folder: Path) -> list[str]:
    """Paths in a data set that its manifest does not list: files, links and folders that somebody else put there.

    Raises:
        OSError: a folder in it cannot be read.
    """
    listed = _listed(folder)
    parents = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    found = []
    for path in walk(folder):
        name = path.relative_to(folder).as_posix()
        real_folder = path.is_dir() and not path.is_symlink()
        if name not in parents if real_folder else name not in listed or path.is_symlink():
            found.append(name)
    return sorted(found)


def remove_set(folder: Path) -> None:
    """Delete what the manifest in ``folder`` lists, then the folder. What it does not list stays, and so the folder."""
    found, listed = list(walk(folder)), _listed(folder)
    ours = [p for p in found if not p.is_symlink() and p.is_file() and p.relative_to(folder).as_posix() in listed]
    for path in sorted(ours, key=lambda path: path == folder / NAME):  # the manifest last: it says what is ours
        path.unlink()
    for path in (*(p for p in reversed(found) if p.is_dir() and not p.is_symlink()), folder):
        with suppress(OSError):  # not empty
            path.rmdir()


def walk(folder: Path) -> Iterator[Path]:
    """Everything below ``folder``, each folder before what is in it; no link is followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    for where, folders, files in os.walk(folder, onerror=fail):
        yield from (Path(where, name) for name in (*folders, *files))


def _listed(folder: Path) -> set[str]:
    return {NAME, *read_manifest(folder).get("files", {})}
