"""The files of a run other than its checkpoints, copied to its address while it trains and at its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from recipe_core.checkpoint.remote import lock
from recipe_core.checkpoint.remote.objects import Objects
from recipe_core.errors import RecipeError

INTERVAL = 15.0
"""Seconds between two copies in the background; longer while a copy takes more than a twentieth of it."""
LONGEST = 120.0
OMITTED = ("checkpoints", "dry-run", "launch")
"""Folders of a run that are not copied: checkpoints are uploaded by all ranks, and the others are of one machine."""
_BEATS = ".beat.json"
"""Ending of the files by which ranks of one start see each other."""


class Mirror:
    """Copies files of ``folder`` that changed since its last call; safe for several threads."""

    def __init__(self, objects: Objects, folder: Path) -> None:
        self._objects, self._folder = objects, folder
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of the copied state
        self._mutex = threading.Lock()

    def copy(self) -> None:
        """Copy what changed, and delete the copies that it made of files that are gone.

        Raises:
            RecipeError: the storage refuses it, or cannot be reached.
        """
        with self._mutex:
            there = dict(self._files())
            for name, state in there.items():
                if self._sent.get(name) != state and self._send(name):
                    self._sent[name] = state
            for name in self._sent.keys() - there.keys():
                self._objects.delete(name)
                del self._sent[name]

    def _files(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for path in sorted(self._folder.rglob("*")):
            parts = path.relative_to(self._folder).parts
            if parts[0] in OMITTED or parts[-1].endswith(_BEATS) or any(part.startswith(".") for part in parts):
                continue
            try:
                if path.is_file() and not path.is_symlink():
                    facts = path.stat()
                    yield "/".join(parts), (facts.st_size, facts.st_mtime_ns)
            except OSError:  # removed in the meantime
                continue

    def _send(self, name: str) -> bool:
        try:
            self._objects.upload(name, self._folder / name)
        except FileNotFoundError:
            return False
        return True


@contextmanager
def mirrored(objects: Objects, folder: Path, token: str, warn: Callable[[str], None]) -> Iterator[Mirror]:
    """Copy in a thread, and renew the lock with ``token``, while the block runs. Failures are reported by ``warn``."""
    mirror, ended = Mirror(objects, folder), threading.Event()
    thread = threading.Thread(target=_repeat, args=(mirror, objects, token, warn, ended), name="mirror", daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        ended.set()
        thread.join(LONGEST)


def _repeat(
    mirror: Mirror, objects: Objects, token: str, warn: Callable[[str], None], ended: threading.Event
) -> None:  # fmt: skip
    pause, failing, ours = INTERVAL, False, True
    while not ended.wait(pause):
        began = time.monotonic()
        try:
            ours = ours and lock.renew(objects, token)
            if not ours:
                return  # the next save ends the run, with a message
            mirror.copy()
            failing = False
        except (RecipeError, OSError) as error:
            if not failing:
                warn(f"{objects.address}: metrics and logs are not copied for now, and tried again: {error}")
            failing = True
        pause = min(max(INTERVAL, 20 * (time.monotonic() - began)), LONGEST)
