"""The output of a preparation: made in a side folder that an interrupted run leaves for the next one."""

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

_REPLACES = {"replaces": "an earlier set"}
"""Entry of the journal of a set that is about to take another's place."""


class Output:
    """A folder ``final`` that appears when it is complete.

    .. code-block:: python

        with Output(Path("data/wiki"), {"inputs": [...], "vocabulary": 30522}, reads=paths, overwrite=False) as output:
            for entry in output.done: ...       # what an earlier run has finished
            ...                                 # write files into output.folder
            output.note({"shard": 1})           # as often as a part is complete, its files synced
            manifest = output.finish({"kind": ...})

    Until then its files stand in ``.NAME.part`` beside it, with a journal of what is done. A run with the same
    ``settings`` (plain data; inputs with their sizes and times among them) continues there; one with others starts
    anew. Left by a mistake of the user, the block leaves no side folder behind.

    With ``overwrite``, an earlier data set stays until the new one is complete, and then makes room for it in one step.
    Of the earlier one, only the files that its manifest lists are deleted: a folder with anything else in it, or with
    one of the files that the preparation ``reads``, is refused.

    Raises:
        ConfigError: ``final`` is remote; or it exists and ``overwrite`` is false, or it is not for us to replace; or
            another process makes the same output.
        DiskError: the folder cannot be written.
    """

    def __init__(self, final: Path, settings: Mapping[str, Any], *, reads: Iterable[Path], overwrite: bool) -> None:
        require_local(final, "output")
        # Not only the last name: "." and ".." have none, and a link is to stay one.
        self.final, self.overwrite = Path(os.path.abspath(final)), overwrite  # noqa: PTH100
        if not self.final.name:
            raise ConfigError(f"output: {final}: is the root of the file system; name a folder in it")
        self.shown, self._reads = final, list(reads)
        self.folder = self.final.with_name(f".{self.final.name}.part")
        self._old = self.final.with_name(f".{self.final.name}.old")
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        with self.writing():
            self._require_side_folder()
            self._lock = self._take()
            try:
                self._recover()
                self._check_final()
                self.entries: list[dict[str, Any]] = self._read()
                if not self.entries:
                    self._clear()
                    self.note({"key": self.key})
            except BaseException:
                self._lock.close()
                if not _entries(self.folder) and not is_prepared(self.folder):
                    remove(self.folder)  # an earlier run has left nothing to continue
                raise

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()
        mistake = isinstance(error, RecipeError) and not isinstance(error, (DiskError, WorkerDiedError))
        if error is not None and (mistake or not self.done) and _entries(self.folder):
            remove(self.folder)

    def writing(self) -> AbstractContextManager[None]:
        """Word what goes wrong on the disk: for everything that writes into :attr:`folder`.

        Raises:
            DiskError: the disk is full or cannot be written.
        """
        return writing(self.shown)

    def _require_side_folder(self) -> None:
        """Leave a folder of the user alone that happens to have the side folder's name."""
        if not os.path.lexists(self.folder) or _entries(self.folder):
            return
        if self.folder.is_symlink() or not self.folder.is_dir():
            others = [self.folder.name]
        elif self._published() and is_prepared(self.folder):  # the earlier set, after the swap
            others = foreign(self.folder)
        else:
            others = [path.name for path in self.folder.iterdir()]
        if others := [name for name in others if name not in (LOCK, JOURNAL)]:
            raise ConfigError(
                f"output: {self.shown} is made in the folder {self.folder}, which is there already and not ours "
                f"({_some(others)}); move it away, or name another output"
            )

    def _published(self) -> bool:
        """True if ``final`` is complete, and a run ended before it removed its own files."""
        return bool(_entries(self.final)) and (self.final / NAME).is_file()

    def _recover(self) -> None:
        """Bring to its end what a run was doing when the power failed in the middle of :meth:`finish`."""
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
            # A mistyped name must not cost somebody a folder of other things.
            raise ConfigError(
                f"output: {self.shown} exists and was not made by `recipe prepare` (it has no {NAME} of that "
                "command), so overwrite=true does not replace it; remove it yourself, or name another folder"
            )
        if used := self._read_from_final():
            raise ConfigError(
                f"output: {self.shown} holds what this preparation reads ({_some(used)}), and overwrite=true would "
                "delete it; name another folder"
            )
        if others := foreign(self.final):
            raise ConfigError(
                f"output: {self.shown} holds what its {NAME} does not list ({_some(others)}), and overwrite=true "
                "deletes nothing else; move that away, or name another folder"
            )
        if os.path.lexists(self._old):
            raise ConfigError(
                f"output: {self.shown} would make room under the name {self._old}, which is there already; move that "
                "away, or name another folder"
            )

    def _read_from_final(self) -> list[str]:
        """The files that the preparation reads and that lie in ``final``, under whatever name they were given."""
        here = self.final.resolve()
        inside = {_identity(path) for path in walk(self.final)}
        return [str(p) for p in self._reads if here in [p.resolve(), *p.resolve().parents] or _identity(p) in inside]

    def _take(self) -> IO[bytes]:
        """Make the side folder and lock it: two runs that write it at once would give neither's data set."""
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

    def _read(self) -> list[dict[str, Any]]:
        """Entries of an earlier run of the same settings, the unfinished last line dropped."""
        entries = _entries(self.folder)
        if not entries or entries[0] != {"key": self.key}:
            return []
        # What follows a torn line must not be appended to it.
        write_text(self.folder / JOURNAL, "".join(json.dumps(entry) + "\n" for entry in entries))
        return entries

    @property
    def done(self) -> list[dict[str, Any]]:
        """Facts that :meth:`note` recorded, in this run and the one that it continues."""
        return [entry for entry in self.entries[1:] if entry != _REPLACES]

    def note(self, entry: dict[str, Any]) -> None:
        """Record, for good, that a part is complete; its files must be on the disk before (``files.sync``)."""
        journal = self.folder / JOURNAL
        with journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
        sync(journal)
        self.entries.append(entry)

    def finish(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``manifest.json`` and give the folder its final name; return the manifest.

        Files that it does not list are added to it: it lists all, and so says what may ever be deleted.
        """
        with self.writing():
            return self._finish(dict(manifest))

    def _finish(self, manifest: dict[str, Any]) -> dict[str, Any]:
        listed = manifest.get("files", {})
        ours = {*listed, NAME, LOCK, JOURNAL}
        files = (path.relative_to(self.folder).as_posix() for path in walk(self.folder) if path.is_file())
        manifest["files"] = {**listed, **file_facts(self.folder, sorted({*files} - ours))}
        write_text(self.folder / NAME, manifest_text(manifest))
        for path in walk(self.folder):
            sync(path)
        self._check_final()  # it may have appeared, or got other files, meanwhile
        if os.path.lexists(self.final):
            self._swap()
        else:
            self.folder.rename(self.final)
        self._clear_up()
        return manifest

    def _swap(self) -> None:
        """Put the new set in the place of the earlier one."""
        self.note(_REPLACES)  # from here on, what has the name `_old` is ours to remove
        if exchange(self.folder, self.final):
            self.folder.rename(self._old)
        else:
            self.final.rename(self._old)
            self.folder.rename(self.final)

    def _clear_up(self) -> None:
        """Remove what stands beside a data set that has its name."""
        sync(self.final.parent)
        if _REPLACES in _entries(self.final) and self._old.is_dir():
            remove_set(self._old)
            if self._old.exists():
                left = _some(foreign(self._old))
                print(f"{self._old}: kept, for it holds what `recipe prepare` did not write ({left})", file=sys.stderr)
        (self.final / LOCK).unlink(missing_ok=True)
        # Last, so that whatever happens before, the next run finds what this one has done.
        (self.final / JOURNAL).unlink()
        sync(self.final.parent)


def _entries(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of the journal in ``folder``; empty where there is none of ours."""
    path = folder / JOURNAL
    entries = []
    for line in (path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "").splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries if entries and isinstance(entries[0], dict) and entries[0].keys() == {"key"} else []


def _identity(path: Path) -> tuple[int, int]:
    """The number of a file, which is the same under all its names."""
    facts = path.stat() if path.exists() else path.lstat()  # a link may lead nowhere
    return facts.st_dev, facts.st_ino


def _some(names: Sequence[str], shown: int = 3) -> str:
    """The first of ``names``, and how many more there are."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


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
        again = " and give the same command again (it continues where it was),"
        raise disk_error(reason, shown, again=again) from error
