"""The objects below the address of a run, by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recipe_core.errors import ConfigError
from recipe_core.files.objects import ObjectChangedError, ObjectError, ObjectMissingError, ObjectPath, ObjectStat
from recipe_core.files.objects.failures import ShortBodyError, kind_of
from recipe_core.files.objects.retries import repeated
from recipe_core.files.objects.store import client
from recipe_core.files.objects.transfers import download, upload


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

    def below(self, prefix: str = "") -> dict[str, ObjectStat]:
        """Return all objects below ``prefix`` by name, in order."""
        place = self.path / prefix if prefix else self.path
        return {path.relative_to(self.path): stat for path, stat in place.objects()}

    def folders(self, prefix: str) -> list[str]:
        """Return the names directly below ``prefix`` that further objects are below of, in order."""
        place = self.path / prefix if prefix else self.path
        return [path.name for path in place.children()[0]]

    def files(self) -> dict[str, ObjectStat]:
        """Return the objects directly below the address by name, in order."""
        return {path.name: stat for path, stat in self.path.children()[1]}

    def read(self, name: str) -> bytes | None:
        """Return a small object; None if there is none."""
        found = self.read_version(name)
        return None if found is None else found[0]

    def read_version(self, name: str) -> tuple[bytes, ObjectStat] | None:
        """Return a small object and its version, from one request; None if there is none."""
        place = self.path / name

        def get(api: Any, store: Any) -> tuple[bytes, ObjectStat]:
            result = api.get(store, place.key)
            content, meta = bytes(result.bytes()), result.meta
            if len(content) != meta["size"]:
                raise ShortBodyError(f"{len(content):,} of {meta['size']:,} bytes")
            return content, ObjectStat(len(content), str(meta["e_tag"] or ""), meta["version"])

        try:
            found: tuple[bytes, ObjectStat] = self._request(place, get)
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

    def replace(self, name: str, content: bytes, stat: ObjectStat) -> bool:
        """Replace a small object unless it has changed since ``stat`` was read; see :meth:`write_new`."""
        place, version = self.path / name, {"e_tag": stat.etag}
        if stat.version is not None:
            version["version"] = stat.version
        return self._conditional(place, lambda api, store: api.put(store, place.key, content, mode=version))

    def upload(self, name: str, file: Path, check: Callable[[], object] = bool) -> None:
        """Write a file; see :func:`recipe_core.files.objects.transfers.upload`."""
        upload(file, self.path / name, check)

    def download(self, name: str, file: Path, size: int) -> None:
        """Write the object of ``size`` bytes into ``file``.

        Raises:
            ObjectError: it is missing, or has another size.
        """
        place = self.path / name
        stat = place.stat()
        if stat.size != size:
            raise ObjectError(f"{place}: has {stat.size:,} bytes, and {size:,} were expected; copy the object again")
        download(place, file, stat)

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
