"""``manifest.json``: what a prepared data set was made from, and what its files must be."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from recipe_core.errors import DataError
from recipe_core.files import digest
from recipe_core.sealed import file_problem, sealed, unlisted, unsealed

NAME = "manifest.json"


def file_facts(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files in ``folder``: the ``files`` of a manifest."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)} for name in names}


def sealed_text(manifest: Mapping[str, Any], folder: Path, others: Collection[str]) -> str:
    """A manifest as it is written: with every file of ``folder`` but ``others``, and a digest of itself."""
    files = manifest.get("files", {})
    rest = [name for name in unlisted(folder, files, NAME) if name not in others]
    whole = {**manifest, "files": {**files, **file_facts(folder, rest)}}
    return json.dumps(sealed(whole), indent=2, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in ``folder``; empty where there is none, as in data sets that others made.

    Raises:
        DataError: it is damaged, or was changed after it was written.
    """
    path = folder / NAME
    try:
        found = unsealed(path.read_text(encoding="utf-8"))
        if not isinstance(found.get("files", {}), dict):
            raise TypeError("it does not hold what `recipe prepare` writes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is damaged ({error}); prepare the data set again") from error
    return found


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
        if not any(fnmatchcase(name, pattern) for pattern in beside)
    ]
    return [
        *(f"{folder / name}: {problem}" for name, problem in found if problem),
        *(f"{folder / name}: is not in the manifest; move it out of the folder" for name in strays),
    ]
