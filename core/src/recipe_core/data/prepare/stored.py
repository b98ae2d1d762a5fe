"""A data set for object storage: it is made in a folder of this machine, then copied, the manifest last."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recipe_core.data.prepare.inputs import require_same_content
from recipe_core.data.prepare.manifest import NAME, is_prepared, read_manifest, remove_set
from recipe_core.data.prepare.progress import ProgressBar
from recipe_core.errors import ConfigError, DataError
from recipe_core.files import home, lock_now, remove
from recipe_core.files.objects import ObjectError, ObjectExistsError, ObjectPath
from recipe_core.files.objects.transfers import upload

CLAIM = ".upload.json"
"""Object beside the files of a data set that is being made; the last one to be deleted."""


@dataclass
class StoredOutput:
    """A prefix of object storage that becomes a data set.

    Readers see a data set once its manifest is there, which is written when all files are complete. Until then, an
    object :data:`CLAIM` says who makes it. The same command continues an interrupted one, on the same machine.
    """

    place: ObjectPath
    key: str
    """Identifies the command."""
    overwrite: bool = False
    replaces: list[str] = field(default_factory=list)
    """Names of objects of `recipe prepare`, of an earlier data set or an interrupted copy, which may be replaced."""

    @classmethod
    def of(cls, address: str, words: Sequence[str], *, overwrite: bool) -> StoredOutput:
        """Return the output of the command ``recipe prepare WORDS``.

        Raises:
            ConfigError: the address is malformed, or that of a whole bucket.
        """
        place = ObjectPath.parse(address)
        if not place.key:
            raise ConfigError(f"output: {address}: is a whole bucket; name a prefix in it, as {place / 'data'}")
        text = json.dumps([str(place), str(Path.cwd()), [[word, _files(word.partition("=")[2])] for word in words]])
        return cls(place, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), overwrite)

    @property
    def folder(self) -> Path:
        """The folder of this machine in which the data set is made."""
        return home() / "prepared" / self.key[:16] / self.place.name

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the prefix: others that would write it are refused, also after an interruption.

        Raises:
            ConfigError: something is at the prefix that must not be replaced, or another command makes it.
            ObjectError: the storage cannot be read and written.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder.parent / "lock", self.place):
            own = self._claim()
            try:
                self._check(own)
            except BaseException:
                if not own:
                    (self.place / CLAIM).delete()
                raise
            print(f"recipe prepare: made in {self.folder}, then copied to {self.place}", file=sys.stderr, flush=True)
            yield

    def is_made(self) -> bool:
        """True if an interrupted command has made the data set, of the inputs as they are now; else it is removed."""
        if not is_prepared(self.folder):
            return False
        try:
            require_same_content(read_manifest(self.folder))
        except DataError as error:
            print(f"recipe prepare: {error}; the data set is made again", file=sys.stderr, flush=True)
            remove_set(self.folder)
            return False
        print("recipe prepare: the data set was complete, and only needs to be copied", file=sys.stderr, flush=True)
        return True

    def publish(self) -> Mapping[str, Any]:
        """Copy the data set in :attr:`folder`, remove it there, and return its manifest.

        Raises:
            ObjectError: an object cannot be written; the same command continues.
        """
        manifest = read_manifest(self.folder)
        if not self._is_published():
            self._copy_all(manifest["files"])
        (self.place / CLAIM).delete()
        remove_set(self.folder)
        if self.folder.exists():
            print(f"{self.folder}: kept, for it holds what `recipe prepare` did not write", file=sys.stderr)
        else:
            remove(self.folder.parent)
        return manifest

    def _is_published(self) -> bool:
        # an earlier command was interrupted just before its end
        place = self.place / NAME
        return place.exists() and place.read() == (self.folder / NAME).read_bytes()

    def _copy_all(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        self._write_claim(sorted({*self.replaces, *files}))
        (self.place / NAME).delete()  # from here on there is no data set, until the new one is complete
        with ProgressBar("upload", sum(facts["bytes"] for facts in files.values())) as progress:
            done = 0
            for name, facts in files.items():
                self._copy(name, facts["bytes"])
                done += facts["bytes"]
                progress.update(done)
        for name in sorted({*self.replaces} - {*files}):
            (self.place / name).delete()
        (self.place / NAME).write((self.folder / NAME).read_bytes())

    def give_up(self) -> None:
        """Let others have the prefix, if nothing was copied and there is nothing here to continue."""
        if not os.path.lexists(self.folder) and not self._names():
            (self.place / CLAIM).delete()

    def _claim(self) -> bool:
        """Write the claim; True if it was there, left by this command."""
        try:
            self._write_claim([], create=True)
        except ObjectExistsError:
            pass
        else:
            return False
        found = _facts((self.place / CLAIM).read())
        if found.get("host") != socket.gethostname() or not (found.get("key") == self.key or self._took_over(found)):
            raise ConfigError(
                f"output: {self.place}: another `recipe prepare` makes it, or was interrupted (on "
                f"{found.get('host')}, begun {found.get('begun')}); give the same command on that machine, name "
                f"another output, or delete {self.place / CLAIM} if nothing is to come of it"
            )
        self.replaces = [str(name) for name in found.get("replaces", [])]
        self._write_claim(self.replaces)
        return True

    def _write_claim(self, replaces: Sequence[str], *, create: bool = False) -> None:
        facts = {
            "key": self.key,
            "host": socket.gethostname(),
            "folder": str(self.folder.parent),
            "begun": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "replaces": [*replaces],
        }
        (self.place / CLAIM).write(json.dumps(facts).encode(), create=create)

    def _took_over(self, found: Mapping[str, Any]) -> bool:
        """True if the claim is of another command in this cache that has ended; what it has here is removed."""
        other = home() / "prepared" / str(found.get("key"))[:16]
        if str(other) != found.get("folder") or not (other / "lock").is_file():
            return False
        lock = lock_now(other / "lock")
        if lock is None:
            return False
        lock.close()
        remove(other)
        return True

    def _names(self) -> list[str]:
        found = [path.relative_to(self.place) for path, _ in self.place.objects()]
        return [name for name in found if name not in ("", CLAIM)]

    def _check(self, own: bool) -> None:
        names = self._names()
        if NAME not in names:
            if names := sorted({*names} - {*self.replaces}):
                raise ConfigError(
                    f"output: {self.place}: holds what `recipe prepare` did not write ({_some(names)}); name another "
                    "output, or move that away"
                )
            return
        if own and is_prepared(self.folder) and self._is_published():
            return
        if not self.overwrite:
            raise ConfigError(f"output: {self.place} exists; name another, or set overwrite=true to replace it")
        earlier = _facts((self.place / NAME).read())
        files = earlier.get("files")
        if not isinstance(files, dict) or not isinstance(earlier.get("kind"), str):
            raise ConfigError(
                f"output: {self.place} exists and was not made by `recipe prepare`, so overwrite=true does not replace "
                "it; remove it yourself, or name another"
            )
        if unlisted := sorted({*names} - {NAME, *files, *self.replaces}):
            raise ConfigError(
                f"output: {self.place} holds what its {NAME} does not list ({_some(unlisted)}), and overwrite=true "
                "deletes nothing else; move that away, or name another"
            )
        self.replaces = sorted({*files, *self.replaces})

    def _copy(self, name: str, size: int) -> None:
        target = self.place / name
        upload(self.folder / name, target)
        if (found := target.stat().size) != size:
            raise ObjectError(f"{target}: has {found:,} bytes after it was written, expected {size:,}; try again")


@contextmanager
def _locked(path: Path, place: ObjectPath) -> Iterator[None]:
    lock = lock_now(path)
    if lock is None:
        raise ConfigError(f"output: another process of this machine makes {place} at the moment; wait for it")
    try:
        yield
    finally:
        lock.close()


def _files(value: str) -> list[tuple[str, int, int]]:
    """Size and time of the file that a setting names, or of the files in the folder, such as a tokenizer's."""
    path = Path(value).expanduser() if value and "\0" not in value else Path()
    try:
        files = sorted(path.iterdir()) if value and path.is_dir() else [path]
        facts = [(str(file), file.stat()) for file in files if file.is_file()]
    except OSError:  # such as a text that is too long for a name
        return []
    return [(name, fact.st_size, fact.st_mtime_ns) for name, fact in facts]


def _facts(content: bytes) -> Mapping[str, Any]:
    try:
        facts = json.loads(content)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _some(names: Sequence[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
