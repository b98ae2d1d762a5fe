"""The objects below the address of a run, by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.files.objects import ObjectChangedError, ObjectError, ObjectMissingError, ObjectPath
from recipe_core.files.objects.failures import ShortBodyError, explained, kind_of
from recipe_core.files.objects.retries import repeated
from recipe_core.files.objects.store import client

_PART, _MOST_PARTS = 16 << 20, 9_000
"""Bytes of a part of an upload, and the most parts; S3 takes 10,000."""
_AT_ONCE = 4
"""Parts of one file on their way at the same time; each is in memory."""
_PIECE = 64 << 20
"""Bytes of a download in memory, which several requests fetch at the same time."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An object in a list."""

    size: int
    """Bytes."""
    etag: str
    """Changes with the content."""
    version: str | None = None
    """Number of the version, where the storage has them: Google's needs it to replace an object."""


class Objects:
    """The objects below ``path``, the prefix of a run or a checkpoint.

    Every method raises ObjectError if the storage refuses, or does not answer within the bounds of all repetitions.
    """

    def __init__(self, path: ObjectPath) -> None:
        self.path, self.address = path, str(path)

    @classmethod
    def at(cls, address: str) -> Objects:
        """Return the objects below an address.

        Raises:
            ConfigError: it is not the address of a prefix in a bucket.
        """
        path = ObjectPath.parse(address)
        if not path.key:
            raise ConfigError(f"{address}: expected a name after the bucket: {path}/NAME")
        return cls(path)

    def below(self, prefix: str = "") -> dict[str, Entry]:
        """Return all objects below ``prefix`` by name, in order."""
        place = self.path / prefix if prefix else self.path
        skipped = len(self.path.key) + 1
        return {path.key[skipped:]: Entry(size=stat.size, etag=stat.etag) for path, stat in place.objects()}

    def folders(self, prefix: str) -> list[str]:
        """Return the names directly below ``prefix`` that further objects are below of, in order."""
        place = self.path / prefix if prefix else self.path
        return [path.name for path in place.children()[0]]

    def files(self) -> dict[str, Entry]:
        """Return the objects directly below the address by name, in order."""
        return {path.name: Entry(size=stat.size, etag=stat.etag) for path, stat in self.path.children()[1]}

    def read(self, name: str) -> bytes | None:
        """Return a small object; None if there is none."""
        found = self.read_entry(name)
        return None if found is None else found[0]

    def read_entry(self, name: str) -> tuple[bytes, Entry] | None:
        """Return a small object and its version, from one request; None if there is none."""
        place = self.path / name

        def get(api: Any, store: Any) -> tuple[bytes, Entry]:
            result = api.get(store, place.key)
            content, meta = bytes(result.bytes()), result.meta
            if len(content) != meta["size"]:
                raise ShortBodyError(f"{len(content):,} of {meta['size']:,} bytes")
            return content, Entry(size=len(content), etag=str(meta["e_tag"] or ""), version=meta["version"])

        try:
            found: tuple[bytes, Entry] = self._request(place, get)
        except ObjectMissingError:
            place.children()  # a missing bucket is an error
            return None
        return found

    def write(self, name: str, content: bytes) -> None:
        """Write a small object."""
        (self.path / name).write(content)

    def write_new(self, name: str, content: bytes) -> bool:
        """Write a small object unless there is one; return True if it was written.

        An object that is there may be this one, if the answer to an earlier try was lost.
        """
        place = self.path / name
        return self._conditional(place, lambda api, store: api.put(store, place.key, content, mode="create"))

    def replace(self, name: str, content: bytes, entry: Entry) -> bool:
        """Replace a small object unless it has changed since ``entry`` was read; see :meth:`write_new`."""
        place, version = self.path / name, {"e_tag": entry.etag}
        if entry.version is not None:
            version["version"] = entry.version
        return self._conditional(place, lambda api, store: api.put(store, place.key, content, mode=version))

    def upload(self, name: str, file: Path, check: Callable[[], object] = bool) -> None:
        """Write a file, a large one in several parts; ``check`` is called before each, and may raise to abort it.

        Raises:
            FileNotFoundError: ``file`` is missing.
        """
        place = self.path / name
        check()
        with file.open("rb") as opened:
            first = opened.read(_PART)
            if len(first) < _PART:
                place.write(first)
                return
            size = file.stat().st_size
            self._upload_parts(place, max(_PART, -(-size // _MOST_PARTS)), _parts(first, opened.read, check))

    def _upload_parts(self, place: ObjectPath, part: int, content: Iterator[bytes]) -> None:
        failed: list[BaseException] = []

        def noting() -> Iterator[bytes]:
            try:
                yield from content
            except BaseException as error:
                failed.append(error)
                raise

        store = client(place.scheme, place.bucket, repeats=True)
        import obstore

        try:
            obstore.put(store, place.key, noting(), chunk_size=part, max_concurrency=_AT_ONCE)
        except Exception as error:
            if failed:
                raise failed[0] from None
            raise explained(kind_of(error), place.scheme, place.bucket, str(place), error) from error
        if failed:
            raise failed[0]

    def download(self, name: str, file: Path, size: int) -> None:
        """Write the object of ``size`` bytes into ``file``, 64 MiB at a time.

        Raises:
            ObjectError: it is missing, or has another size.
        """
        place = self.path / name
        stat = place.stat()
        if stat.size != size:
            raise ObjectError(f"{place}: has {stat.size:,} bytes, and {size:,} were expected; copy the object again")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as target:
            for start in range(0, size, _PIECE):
                target.write(place.read_range(start, min(start + _PIECE, size), stat.etag))

    def delete(self, name: str) -> None:
        """Delete an object; a missing one is no error."""
        (self.path / name).delete()

    def _conditional(self, place: ObjectPath, request: Any) -> bool:
        try:
            self._request(place, request)
        except ObjectChangedError:
            return False
        except ObjectError as error:
            if kind_of(error.__cause__ or error) in ("exists", "changed", "missing"):
                return False
            raise
        return True

    def _request(self, place: ObjectPath, request: Any) -> Any:
        store = client(place.scheme, place.bucket)
        import obstore

        return repeated(place, lambda: request(obstore, store))


def _parts(first: bytes, read: Callable[[int], bytes], check: Callable[[], object]) -> Iterator[bytes]:
    piece = first
    while piece:
        check()
        yield piece
        piece = read(_PART)
