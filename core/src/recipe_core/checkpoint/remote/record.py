"""The working folder of a run in object storage, and the file in it that names the address."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from recipe_core.files import home, require_local, write_text
from recipe_core.files.documents import read_record

FILE = ".stored.json"
WORK = "RECIPE_WORK"
"""Environment variable: the folder of all working folders; by default ``work`` in the cache."""


@dataclass(frozen=True, kw_only=True)
class StoredRun:
    """Ties a working folder to an address."""

    address: str
    working: str
    """Unique id of the working folder; the address records the one that wrote to it last."""
    lock: str = ""
    """Token of the lock, see :mod:`recipe_core.checkpoint.remote.lock`."""


def working_folder(address: str) -> Path:
    """Return the working folder on this machine for ``address``; the endpoint is part of its name.

    Raises:
        ConfigError: RECIPE_WORK is not a path on this machine.
    """
    place = os.environ.get(WORK) or str(home() / "work")
    require_local(place, WORK)
    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT", "")
    digest = hashlib.sha256(f"{endpoint} {address}".encode()).hexdigest()[:12]
    return Path(place).absolute() / f"{address.rpartition('/')[2]}-{digest}"


def read(folder: Path) -> StoredRun | None:
    """Return the record of a working folder; None if it has none, or a damaged one."""
    return read_record(folder / FILE, StoredRun)


def write(folder: Path, record: StoredRun) -> None:
    """Write the record of a working folder."""
    write_text(folder / FILE, json.dumps(asdict(record)) + "\n")
