"""The output of a preparation: made in a side folder that an interrupted run leaves for the next one."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from recipe_core.errors import ConfigError, DiskError, RecipeError
from recipe_core.files import is_full, lock_now, remove, sync, write_text
from recipe_core.prepare.manifest import NAME, sealed_text
from recipe_core.prepare.pool import WorkerDiedError

_LOCK = "lock"
_JOURNAL = "journal.jsonl"


class Output:
    """A folder ``final`` that appears when it is complete.

    .. code-block:: python

        with Output(Path("data/wiki"), {"inputs": [...], "vocabulary": 30522}, overwrite=False) as output:
            for entry in output.done: ...       # what an earlier run has finished
            ...                                 # write files into output.folder
            output.note({"shard": 1})           # as often as a part is complete, its files synced
            output.finish({"kind": ...})

    Until then its files stand in ``.NAME.part`` beside it, with a journal of what is done. A run with the same
    ``settings`` (plain data; inputs with their sizes and times among them) continues there; one with others starts
    anew. Left by a mistake of the user, the block leaves no side folder behind.

    Raises:
        ConfigError: ``final`` exists and ``overwrite`` is false, or it is not for us to replace; or another process
            makes the same output.
        DiskError: the folder cannot be written.
    """

    def __init__(self, final: Path, settings: Mapping[str, Any], *, overwrite: bool) -> None:
        # Not only the last name: "." and ".." have none, and a link is to stay one.
        self.final, self.overwrite = Path(os.path.abspath(final)), overwrite  # noqa: PTH100
        self.shown = final
        self.folder = self.final.with_name(f".{self.final.name}.part")
        self._old = self.final.with_name(f".{self.final.name}.old")
        if self._old.exists() and not self.final.exists():
            self._old.rename(self.final)  # the power failed between two renames of `finish`
        self._check_final()
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        self._journal = self.folder / _JOURNAL
        with self.writing():
            self._lock = self._take()
            self.entries: list[dict[str, Any]] = self._read()
            if not self.entries:
                self._clear()
                self.note({"key": self.key})

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()
        mistake = isinstance(error, RecipeError) and not isinstance(error, (DiskError, WorkerDiedError))
        if error is not None and (mistake or not self.done):
            remove(self.folder)

    def writing(self) -> AbstractContextManager[None]:
        """Word what goes wrong on the disk: for everything that writes into :attr:`folder`.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        return writing(self.shown)

    def _check_final(self) -> None:
        if not os.path.lexists(self.final):
            return
        if not self.overwrite:
            raise ConfigError(f"output: {self.shown} exists; name another folder, or set overwrite=true to replace it")
        if not (self.final / NAME).is_file() or self.final.is_symlink():
            # A mistyped name must not cost somebody a folder of other things.
            raise ConfigError(
                f"output: {self.shown} exists and was not made by `recipe prepare` (it has no {NAME}), so "
                "overwrite=true does not replace it; remove it yourself, or name another folder"
            )

    def _take(self) -> IO[bytes]:
        """Make the side folder and lock it: two runs that write it at once would give neither's data set."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = lock_now(self.folder / _LOCK)
        if lock is None:
            raise ConfigError(
                f"output: another process makes {self.shown} at the moment; wait for it, or name another folder"
            )
        return lock

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.name != _LOCK:
                remove(path)

    def _read(self) -> list[dict[str, Any]]:
        """Entries of an earlier run of the same settings, the unfinished last line dropped."""
        entries = []
        text = self._journal.read_text(encoding="utf-8", errors="replace") if self._journal.exists() else ""
        for line in text.splitlines():
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                break
        if not entries or entries[0] != {"key": self.key}:
            return []
        # What follows a torn line must not be appended to it.
        write_text(self._journal, "".join(json.dumps(entry) + "\n" for entry in entries))
        return entries

    @property
    def done(self) -> list[dict[str, Any]]:
        """What :meth:`note` recorded, in this run and the one it continues."""
        return self.entries[1:]

    def note(self, entry: dict[str, Any]) -> None:
        """Record, for good, that a part is complete; its files must be on the disk before (``files.sync``)."""
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        sync(self._journal)
        self.entries.append(entry)

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write ``manifest.json`` and give the folder its final name."""
        with self.writing():
            self._finish(manifest)

    def _finish(self, manifest: Mapping[str, Any]) -> None:
        write_text(self.folder / NAME, sealed_text(manifest, self.folder, (_LOCK, _JOURNAL)))
        for path in self.folder.rglob("*"):
            sync(path)
        self._check_final()  # it may have appeared meanwhile
        if self.final.exists():
            remove(self._old)
            self.final.rename(self._old)
        (self.folder / _LOCK).unlink()
        self.folder.rename(self.final)
        # Last, so that whatever happens before, the next run finds what this one has done.
        (self.final / _JOURNAL).unlink()
        sync(self.final.parent)
        remove(self._old)


@contextmanager
def writing(shown: Path) -> Iterator[None]:
    """The same for a worker, which has no :class:`Output`; ``shown`` is the output as the user wrote it.

    What is written stands in a side folder until it is complete, of which no message should speak.

    Raises:
        DiskError: the disk is full or cannot be written.
    """
    try:
        yield
    except (OSError, DiskError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(reason, OSError):
            raise
        again = "free some space and give the same command again (it continues where it was), or "
        raise DiskError(
            f"{shown}: cannot be written ({reason.strerror or reason}); {again * is_full(reason)}choose another folder"
        ) from error
