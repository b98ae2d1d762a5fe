"""``manifest.json``: what a prepared data set was made from, and what its files must be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipe_core.errors import DataError
from recipe_core.files import digest

NAME = "manifest.json"


def file_facts(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of files in ``folder``: the ``files`` of a manifest."""
    return {name: {"bytes": (folder / name).stat().st_size, "sha256": digest(folder / name)} for name in names}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in ``folder``; empty where there is none, as in data sets that others made.

    Raises:
        DataError: it is damaged.
    """
    path = folder / NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not isinstance(found.get("files", {}), dict):
            raise TypeError("it does not hold what `recipe prepare` writes")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is damaged ({error}); prepare the data set again") from error
    return found


def file_problems(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """One message for each file that the manifest lists and that is missing or holds other bytes."""
    problems = []
    for name, facts in manifest.get("files", {}).items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{path}: is missing; the manifest lists it")
        elif path.stat().st_size != facts["bytes"]:
            problems.append(f"{path}: has {path.stat().st_size:,} bytes, the manifest says {facts['bytes']:,}")
        elif digest(path) != facts["sha256"]:
            problems.append(f"{path}: does not hold the bytes that were written (SHA-256 differs)")
    return problems
