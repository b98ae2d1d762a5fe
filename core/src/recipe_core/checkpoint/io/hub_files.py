"""Hashes that huggingface_hub recorded for the files that it downloaded.

In its cache a file is a link to ``blobs/<hash>``; in a download folder (``--local-dir``) it keeps
``.cache/huggingface/download/<file>.metadata`` with revision, hash and time. Large files have a SHA-256, others git's
SHA-1 of a blob (https://huggingface.co/docs/huggingface_hub/guides/manage-cache). No torch here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA256 = 64


def recorded(file: Path) -> str:
    """Return the recorded hash of a downloaded file, in hexadecimal; empty if unknown."""
    target = file.resolve()
    if target.parent.name == "blobs" and _HASH.fullmatch(target.name):
        return target.name
    note = file.parent / ".cache" / "huggingface" / "download" / f"{file.name}.metadata"
    try:
        _, hexadecimal, time = note.read_text(encoding="utf-8").split()
        # The note does not apply to a file that the user has changed since.
        return hexadecimal if _HASH.fullmatch(hexadecimal) and file.stat().st_mtime - 1 <= float(time) else ""
    except (OSError, ValueError):
        return ""


def problems(files: Iterable[Path]) -> list[str]:
    """Return one message for each file that differs from its download; every byte is read."""
    known = ((file, recorded(file)) for file in files)
    return [
        f"{file}: does not hold the bytes that were downloaded (the hub's hash differs); download it again"
        for file, hexadecimal in known
        if hexadecimal and hexadecimal != _hash(file, hexadecimal)
    ]


def _hash(file: Path, like: str) -> str:
    sha = hashlib.sha256() if len(like) == _SHA256 else hashlib.sha1(usedforsecurity=False)
    if len(like) != _SHA256:
        sha.update(f"blob {file.stat().st_size}\0".encode())
    with file.open("rb", buffering=0) as stream:
        buffer = memoryview(bytearray(1 << 20))
        while count := stream.readinto(buffer):
            sha.update(buffer[:count])
    return sha.hexdigest()
