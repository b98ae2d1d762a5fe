"""The lock of a run in object storage: an object that only one process can create."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from uuid import uuid4

from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.errors import ConfigError, DiskError
from recipe_core.launch.process import Process, this_process

LOCK = ".recipe/lock.json"
STALE = 600.0
"""Seconds after the last renewal from which another process may take the lock over. A run renews it every 15 s to
2 min. Clocks of machines may differ by less: a run that has lost its lock writes nothing more, see :func:`require`."""
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The content of the lock."""

    token: str
    """Unique for each start of a run."""
    folder: str
    """The working folder."""
    process: Process
    renewed: float
    """Seconds since the epoch, by the holder's clock."""

    def text(self) -> bytes:
        """JSON."""
        return json.dumps(asdict(self), indent=1).encode() + b"\n"

    def has_ended(self) -> bool:
        """True if it was a process of this machine, since its last start, that no longer runs."""
        here = this_process()
        return self.process.is_here() and self.process.boot == here.boot and not self.process.is_alive()


def acquire(objects: Objects, folder: Path, show: Callable[[str], None]) -> str:
    """Create the lock and return its token; take over that of a process that has ended, and say so with ``show``.

    Args:
        objects: of the run.
        folder: the working folder.
        show: takes a line for the user.

    Raises:
        ConfigError: another process holds it.
    """
    mine = Holder(token=uuid4().hex, folder=str(folder), process=this_process(), renewed=time.time())
    for _ in range(_ATTEMPTS):
        if objects.write_new(LOCK, mine.text()):
            return mine.token
        if (found := objects.read_version(LOCK)) is None:
            continue
        data, stat = found
        if (holder := _holder(data)) is not None and holder.token == mine.token:  # created, and the answer was lost
            return mine.token
        if holder is None or not (time.time() - holder.renewed > STALE or holder.has_ended()):
            break
        if objects.replace(LOCK, mine.text(), stat) or _token(objects) == mine.token:
            show(f"{objects.address}: the lock of {_described(holder)}, which has ended or is silent, is taken over")
            return mine.token
    raise ConfigError(
        f"{objects.address}: another process trains there: {_described(holder_of(objects))}. Wait for its end, or give "
        f"another --out. If it was lost, the same command takes over {STALE / 60:.0f} minutes after its last sign of "
        f"life, or at once if you delete {objects.address}/{LOCK}"
    )


def renew(objects: Objects, token: str) -> bool:
    """Renew the lock; False if it is no longer ours."""
    found = objects.read_version(LOCK)
    holder = _holder(found[0]) if found else None
    if found is None or holder is None or holder.token != token:
        return False
    return objects.replace(LOCK, replace(holder, renewed=time.time()).text(), found[1]) or _token(objects) == token


def require(objects: Objects, token: str) -> None:
    """Check that the lock is still ours.

    Raises:
        DiskError: it is not, so that nothing may be written or removed.
    """
    if _token(objects) != token:
        held = holder_of(objects)
        taken = f"{_described(held)} holds its lock" if held else "its lock was deleted"
        raise DiskError(
            f"{objects.address}: nothing is written there: {taken}. Start the run with --out {objects.address}"
        )


def release(objects: Objects, token: str) -> None:
    """Delete the lock if it is ours."""
    if _token(objects) == token:
        objects.delete(LOCK)


def holder_of(objects: Objects) -> Holder | None:
    """Return the content of the lock; None if there is none, or a damaged one."""
    data = objects.read(LOCK)
    return None if data is None else _holder(data)


def _token(objects: Objects) -> str:
    holder = holder_of(objects)
    return holder.token if holder else ""


def _holder(data: bytes) -> Holder | None:
    try:
        plain = json.loads(data)
        return Holder(**{**plain, "process": Process(**plain["process"]), "renewed": float(plain["renewed"])})
    except (ValueError, TypeError, KeyError):
        return None


def _described(holder: Holder | None) -> str:
    if holder is None:
        return "an unknown process"
    renewed = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(holder.renewed))
    return f"process {holder.process.pid} of {holder.process.host} (last sign of life {renewed})"
