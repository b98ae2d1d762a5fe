"""``manifest.json``: inputs and settings of a prepared data set, and sizes and hashes of its files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from recipe_core.data.digest import file_problem, unlisted, verify_digest, with_digest
from recipe_core.errors import DataError
from recipe_core.files import digest
from recipe_core.files.documents import read_text

NAME = "manifest.json"
_HALVES = re.compile("[\udc80-\udcff]+")
LOCK, JOURNAL = "lock", "journal.jsonl"
"""Files of a preparation in progress. They may remain if the power fails just after the set got its name."""


def file_facts(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files in ``folder``: the ``files`` of a manifest."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)} for name in names}


def manifest_text(manifest: Mapping[str, Any]) -> str:
    """Return the text of a manifest, with its digest; undecodable bytes of file names become U+FFFD."""
    text = _HALVES.sub(_replace_halves, json.dumps(dict(manifest), ensure_ascii=False))
    return json.dumps(with_digest(json.loads(text)), indent=2, ensure_ascii=False) + "\n"


def _replace_halves(halves: re.Match[str]) -> str:
    # Python represents undecodable bytes of file names as halves of surrogate pairs.
    return halves.group().encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest in ``folder``; empty if there is none, as in data sets of other programs.

    Raises:
        DataError: it is damaged, or was changed after it was written.
    """
    path = folder / NAME
    try:
        content = verify_digest(read_text(path))
        if not isinstance(content.get("files", {}), dict):
            raise TypeError("it does not hold what `recipe prepare` writes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is damaged ({error}); prepare the data set again") from error
    return content


def file_problems(folder: Path, manifest: Mapping[str, Any], beside: Sequence[str] = ()) -> list[str]:
    """Return one message for each file that is missing, differs, or is not listed.

    Args:
        folder: folder of the data set.
        manifest: its manifest, from :func:`read_manifest`.
        beside: patterns of unlisted files that earlier releases wrote.
    """
    if "files" not in manifest:
        return []
    problems = [
        (name, file_problem(folder / name, facts["bytes"], facts["sha256"]))
        for name, facts in manifest["files"].items()
    ]
    strays = [
        name
        for name in unlisted(folder, manifest["files"], NAME)
        if name not in (LOCK, JOURNAL) and not any(fnmatchcase(name, pattern) for pattern in beside)
    ]
    return [
        *(f"{folder / name}: {problem}" for name, problem in problems if problem),
        *(f"{folder / name}: is not in the manifest; move it out of the folder" for name in strays),
    ]


def without_hashes(folder: Path) -> str:
    """Return the message of ``recipe verify`` for a data set without a manifest; empty if there is one."""
    if (folder / NAME).is_file():
        return ""
    return f"there is no {NAME} with hashes in {folder}, so that a changed value that is possible cannot be seen"


def is_prepared(folder: Path) -> bool:
    """True if ``folder`` is a data set of ``recipe prepare``: a real folder with such a manifest.

    Other programs write files named ``manifest.json`` too.
    """
    try:
        manifest = {} if folder.is_symlink() else read_manifest(folder)
    except DataError:
        return False
    files = manifest.get("files", {}).values()
    complete = all(isinstance(facts, dict) and {"bytes", "sha256"} <= facts.keys() for facts in files)
    return bool(files) and complete and isinstance(manifest.get("kind"), str)


def foreign(folder: Path) -> list[str]:
    """Return the paths in a data set that its manifest does not list: files, links and folders.

    Raises:
        OSError: a folder in it cannot be read.
    """
    listed = _listed(folder)
    parents = {str(parent) for name in listed for parent in PurePosixPath(name).parents}
    unlisted_paths = []
    for path in walk(folder):
        name = path.relative_to(folder).as_posix()
        real_folder = path.is_dir() and not path.is_symlink()
        if name not in parents if real_folder else name not in listed or path.is_symlink():
            unlisted_paths.append(name)
    return sorted(unlisted_paths)


def remove_set(folder: Path) -> None:
    """Delete the files that the manifest in ``folder`` lists, then the folder if it is empty."""
    paths, listed = list(walk(folder)), _listed(folder)
    known = [p for p in paths if not p.is_symlink() and p.is_file() and p.relative_to(folder).as_posix() in listed]
    for path in sorted(known, key=lambda path: path == folder / NAME):  # the manifest last: it lists the others
        path.unlink()
    for path in (*(p for p in reversed(paths) if p.is_dir() and not p.is_symlink()), folder):
        with suppress(OSError):  # not empty
            path.rmdir()


def walk(folder: Path) -> Iterator[Path]:
    """Yield all paths in ``folder``, each folder before its content; links are not followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    for where, folders, files in os.walk(folder, onerror=fail):
        yield from (Path(where, name) for name in (*folders, *files))


def _listed(folder: Path) -> set[str]:
    return {NAME, *read_manifest(folder).get("files", {})}
