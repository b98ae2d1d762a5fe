"""The manifest.json of a prepared data set, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipe_core.errors import DataError
from recipe_core.prepare import sha256


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in ``folder``; empty where there is none, as in data sets that others made.

    Raises:
        DataError: it is damaged.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return dict(found)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); prepare the data set again") from error


def hash_problems(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """One message for each file that the manifest lists and that is missing or holds other bytes."""
    problems = []
    for name, facts in manifest.get("files", {}).items():
        path = folder / name
        if not path.is_file():
            problems.append(f"{path}: is missing; the manifest lists it")
        elif path.stat().st_size != facts["bytes"]:
            problems.append(f"{path}: has {path.stat().st_size:,} bytes, the manifest says {facts['bytes']:,}")
        elif sha256(path) != facts["sha256"]:
            problems.append(f"{path}: does not hold the bytes that were written (SHA-256 differs)")
    return problems
