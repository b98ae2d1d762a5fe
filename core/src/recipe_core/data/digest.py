"""Manifests: JSON that lists files with size and SHA-256, and contains its own digest. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from recipe_core.files import digest
from recipe_core.files.documents import parse_json

VERSION = 2
"""Version of manifests with a digest. Earlier manifests have neither version nor digest."""
_VERSION, _DIGEST = "manifest", "sha256"
_OF_SYSTEMS = (".DS_Store", ".nfs")
"""Name prefixes of files that operating systems create."""


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` with the manifest version and a digest of all entries."""
    plain = {_VERSION: VERSION, **json.loads(json.dumps(content))}
    return {**plain, _DIGEST: _digest(plain)}


def verify_digest(text: str) -> dict[str, Any]:
    """Parse a manifest, verify its digest, and return its content without version and digest.

    Raises:
        ValueError: it is not JSON, its digest differs, or it has a newer version.
        TypeError: it is not a JSON object.
    """
    plain = parse_json(text)
    if not isinstance(plain, dict):
        raise TypeError(f"expected an object, found {type(plain).__name__}")
    version, digest = plain.get(_VERSION), plain.pop(_DIGEST, None)
    if version is None and digest is None:
        return plain
    if digest is None:
        raise ValueError(f"a manifest of version {version} has a digest of itself ({_DIGEST!r}), and this has none")
    if digest != _digest(plain):
        raise ValueError("its own digest differs: it was changed after it was written")
    if version != VERSION:
        raise ValueError(f"it is of version {version}, and version {VERSION} is the newest that is known here")
    del plain[_VERSION]
    return plain


def file_problem(path: Path, size: int, sha256: str | None = None) -> str:
    """Describe how a file differs from its manifest entry; empty if equal. Without ``sha256``, compare only sizes."""
    try:
        actual = path.stat().st_size
        if actual != size:
            return f"has {actual:,} bytes instead of {size:,}"
        if sha256 is not None and digest(path) != sha256:
            return "does not hold the bytes that were written (SHA-256 differs)"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return ""


def unlisted(folder: Path, listed: Collection[str], manifest: str) -> list[str]:
    """Return the files in ``folder`` that are not in ``listed``; ``manifest`` is the name of the manifest itself."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(_OF_SYSTEMS))
    names = (str(path.relative_to(folder)) for path in files)
    return sorted(name for name in names if name not in listed and name != manifest)


def _digest(plain: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return hashlib.sha256(text.encode()).hexdigest()
