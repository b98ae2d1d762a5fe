"""The output of a preparation, written in a side folder that the next run can continue after an interruption."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from recipe_core.data.prepare.manifest import (
    JOURNAL,
    LOCK,
    NAME,
    file_facts,
    foreign,
    is_prepared,
    manifest_text,
    remove_set,
    walk,
)
from recipe_core.data.prepare.pool import WorkerDiedError
from recipe_core.errors import ConfigError, DiskError, RecipeError
from recipe_core.files import disk_error, exchange, lock_now, remove, require_local, sync, write_text
from recipe_core.files.objects.reading import ObjectFile

_REPLACES = {"replaces": "an earlier set"}
"""Journal entry of a set that is about to replace another."""


class Output:
    """A folder ``final`` that appears once it is complete.

    .. code-block:: python

        with Output(Path("data/wiki"), {"inputs": [...], "vocabulary": 30522}, reads=paths, overwrite=False) as output:
            for entry in output.done: ...       # parts that an earlier run has completed
            ...                                 # write files into output.folder
            output.note({"shard": 1})           # after each complete part, once its files are synced
            manifest = output.finish({"kind": ...})

    Until then its files are in ``.NAME.part`` in the same folder, with a journal of complete parts. A run with the same
    ``settings`` (plain data, including sizes and times of the inputs) continues there; with other settings it starts
    over. After a user error, the side folder is removed.

    With ``overwrite``, an earlier data set is replaced in one step once the new one is complete. Only the files in its
    manifest are deleted: a folder with other files, or with a file that the preparation ``reads``, is refused.

    Raises:
        ConfigError: ``final`` is remote; it exists and ``overwrite`` is false, or it must not be replaced; or another
            process writes the same output.
        DiskError: the folder cannot be written.
    """

    def __init__(
        self, final: Path, settings: Mapping[str, Any], *, reads: Iterable[Path | ObjectFile], overwrite: bool
    ) -> None:
        require_local(final, "output")
        # Path.resolve would follow links, which must stay links; "." and ".." have no name.
        self.final, self.overwrite = Path(os.path.abspath(final)), overwrite  # noqa: PTH100
        if not self.final.name:
            raise ConfigError(f"output: {final}: is the root of the file system; name a folder in it")
        self.shown, self._reads = final, [path for path in reads if isinstance(path, Path)]
        self.folder = self.final.with_name(f".{self.final.name}.part")
        self._old = self.final.with_name(f".{self.final.name}.old")
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        with self.writing():
            self._require_side_folder()
            self._lock = self._lock_side_folder()
            try:
                self._recover()
                self._check_final()
                self.entries: list[dict[str, Any]] = self._read_journal()
                if not self.entries:
                    self._clear()
                    self.note({"key": self.key})
            except BaseException:
                self._lock.close()
                if not _entries(self.folder) and not is_prepared(self.folder):
                    remove(self.folder)  # there is nothing to continue
                raise

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()
        user_error = isinstance(error, RecipeError) and not isinstance(error, (DiskError, WorkerDiedError))
        if error is not None and (user_error or not self.done) and _entries(self.folder):
            remove(self.folder)

    def writing(self) -> AbstractContextManager[None]:
        """Return a context manager that words disk errors, for all code that writes into :attr:`folder`.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        return writing(self.shown)

    def _require_side_folder(self) -> None:
        """Refuse to use a folder of the user that happens to have the side folder's name."""
        if not os.path.lexists(self.folder) or _entries(self.folder):
            return
        if self.folder.is_symlink() or not self.folder.is_dir():
            strangers = [self.folder.name]
        elif self._published() and is_prepared(self.folder):  # the earlier set, after the swap
            strangers = foreign(self.folder)
        else:
            strangers = [path.name for path in self.folder.iterdir()]
        if strangers := [name for name in strangers if name not in (LOCK, JOURNAL)]:
            raise ConfigError(
                f"output: {self.shown} is made in the folder {self.folder}, which is there already and not ours "
                f"({_some(strangers)}); move it away, or name another output"
            )

    def _published(self) -> bool:
        """True if ``final`` is complete, and a run ended before it removed its own files."""
        return bool(_entries(self.final)) and (self.final / NAME).is_file()

    def _recover(self) -> None:
        """Complete a :meth:`finish` that was interrupted by a power failure."""
        if self._published():
            if is_prepared(self.folder):
                remove_set(self.folder)
            self._clear_up()
        elif _REPLACES in _entries(self.folder) and not os.path.lexists(self.final) and is_prepared(self._old):
            self._old.rename(self.final)  # between two renames

    def _check_final(self) -> None:
        if not os.path.lexists(self.final):
            return
        if not self.overwrite:
            raise ConfigError(f"output: {self.shown} exists; name another folder, or set overwrite=true to replace it")
        if not is_prepared(self.final):
            # A mistyped name must not delete other data.
            raise ConfigError(
                f"output: {self.shown} exists and was not made by `recipe prepare` (it has no {NAME} of that "
                "command), so overwrite=true does not replace it; remove it yourself, or name another folder"
            )
        if used := self._read_from_final():
            raise ConfigError(
                f"output: {self.shown} holds what this preparation reads ({_some(used)}), and overwrite=true would "
                "delete it; name another folder"
            )
        if unlisted := foreign(self.final):
            raise ConfigError(
                f"output: {self.shown} holds what its {NAME} does not list ({_some(unlisted)}), and overwrite=true "
                "deletes nothing else; move that away, or name another folder"
            )
        if os.path.lexists(self._old):
            raise ConfigError(
                f"output: {self.shown} would make room under the name {self._old}, which is there already; move that "
                "away, or name another folder"
            )

    def _read_from_final(self) -> list[str]:
        here = self.final.resolve()
        inside = {_identity(path) for path in walk(self.final)}
        return [str(p) for p in self._reads if here in [p.resolve(), *p.resolve().parents] or _identity(p) in inside]

    def _lock_side_folder(self) -> IO[bytes]:
        # Two runs that write the side folder at once would corrupt both data sets.
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = lock_now(self.folder / LOCK)
        if lock is None:
            raise ConfigError(
                f"output: another process makes {self.shown} at the moment; wait for it, or name another folder"
            )
        return lock

    def _clear(self) -> None:
        for path in self.folder.iterdir():
            if path.name != LOCK:
                remove(path)

    def _read_journal(self) -> list[dict[str, Any]]:
        """Entries of an earlier run with the same settings, without an incomplete last line."""
        entries = _entries(self.folder)
        if not entries or entries[0] != {"key": self.key}:
            return []
        # A new entry must not be appended to an incomplete line.
        write_text(self.folder / JOURNAL, "".join(json.dumps(entry) + "\n" for entry in entries))
        return entries

    @property
    def done(self) -> list[dict[str, Any]]:
        """Entries that :meth:`note` recorded, in this run and in the one that it continues."""
        return [entry for entry in self.entries[1:] if entry != _REPLACES]

    def note(self, entry: dict[str, Any]) -> None:
        """Record permanently that a part is complete; its files must be synced to disk before (``files.sync``)."""
        journal = self.folder / JOURNAL
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        sync(journal)
        self.entries.append(entry)

    def finish(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``manifest.json``, give the folder its final name, and return the manifest.

        Unlisted files are added to the manifest: only listed files may ever be deleted.
        """
        with self.writing():
            return self._finish(dict(manifest))

    def _finish(self, manifest: dict[str, Any]) -> dict[str, Any]:
        listed = manifest.get("files", {})
        known = {*listed, NAME, LOCK, JOURNAL}
        files = (path.relative_to(self.folder).as_posix() for path in walk(self.folder) if path.is_file())
        manifest["files"] = {**listed, **file_facts(self.folder, sorted({*files} - known))}
        write_text(self.folder / NAME, manifest_text(manifest))
        for path in walk(self.folder):
            sync(path)
        self._check_final()  # it may have appeared or changed meanwhile
        if os.path.lexists(self.final):
            self._swap()
        else:
            self.folder.rename(self.final)
        self._clear_up()
        return manifest

    def _swap(self) -> None:
        self.note(_REPLACES)  # from here on, the folder `_old` may be removed
        if exchange(self.folder, self.final):
            self.folder.rename(self._old)
        else:
            self.final.rename(self._old)
            self.folder.rename(self.final)

    def _clear_up(self) -> None:
        sync(self.final.parent)
        if _REPLACES in _entries(self.final) and self._old.is_dir():
            remove_set(self._old)
            if self._old.exists():
                left = _some(foreign(self._old))
                print(f"{self._old}: kept, for it holds what `recipe prepare` did not write ({left})", file=sys.stderr)
        clear_up(self.final)
        sync(self.final.parent)


def clear_up(folder: Path) -> None:
    """Delete the lock and the journal in a complete data set, whose preparation may have ended before it did so."""
    if _entries(folder):
        (folder / LOCK).unlink(missing_ok=True)
        # Last, so that the next run can recover from any earlier interruption.
        (folder / JOURNAL).unlink()


def _entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / JOURNAL
    entries = []
    for line in (path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "").splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries if entries and isinstance(entries[0], dict) and entries[0].keys() == {"key"} else []


def _identity(path: Path) -> tuple[int, int]:
    # Device and inode are the same under all names of a file.
    facts = path.stat() if path.exists() else path.lstat()  # a link may be broken
    return facts.st_dev, facts.st_ino


def _some(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


@contextmanager
def writing(shown: Path) -> Iterator[None]:
    """Word disk errors like :meth:`Output.writing`, for a worker; ``shown`` is the output as the user wrote it.

    Messages name this path instead of the side folder.

    Raises:
        DiskError: the disk is full or cannot be written.
    """
    try:
        yield
    except (OSError, DiskError) as error:
        reason = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(reason, OSError):
            raise
        again = " and give the same command again (it continues where it was),"
        raise disk_error(reason, shown, again=again) from error
