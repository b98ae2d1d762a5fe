"""Addresses of objects, and what can be done with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from recipe_core.errors import ConfigError
from recipe_core.files.objects.failures import (
    ObjectChangedError,
    ObjectError,
    ObjectMissingError,
    ShortBodyError,
    explained,
)
from recipe_core.files.objects.ranges import Range, pieces
from recipe_core.files.objects.retries import repeated

_ADDRESS = re.compile(r"^(s3|gs|az):/{1,2}(?!/)([^/]*)/?(.*)$", re.DOTALL)
"""``s3:/bucket/x`` too, which ``pathlib`` makes of ``s3://bucket/x``."""
T = TypeVar("T")
_AT_ONCE = 8
"""Requests of one process for one object at the same time."""
_LISTED = 1000
"""Objects of one request for a listing."""


def is_address(text: object) -> bool:
    """True for the text or path of an address of object storage."""
    return _ADDRESS.match(str(text)) is not None


@dataclass(frozen=True)
class ObjectStat:
    """Size and version of an object."""

    size: int
    """Bytes."""
    etag: str
    """Changes with the content; with quotation marks, if the storage gives it so."""
    version: str | None = field(default=None, compare=False)
    """Number of the version, where the storage has them: Google's needs it to replace an object."""


@dataclass(frozen=True, order=True)
class ObjectPath:
    """An address: of one object, or the common beginning of several.

    Every method that touches the storage raises ObjectError, and ConfigError without obstore. Requests are repeated
    within bounds, see :mod:`recipe_core.files.objects.retries`.
    """

    scheme: str
    """``s3``, ``gs`` or ``az``."""
    bucket: str
    key: str = ""
    """Without a slash at its beginning and end; empty for the bucket."""

    @classmethod
    def parse(cls, text: str | Path) -> ObjectPath:
        """Read ``s3://bucket/key``, ``gs://bucket/key`` or ``az://container/key``.

        Raises:
            ConfigError: it is no such address.
        """
        found = _ADDRESS.match(str(text))
        if not found or not found[2]:
            raise ConfigError(f"{text}: expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX")
        parts = found[3].rstrip("/").split("/") if found[3].strip("/") else []
        if any(part in ("", ".", "..") for part in parts):
            raise ConfigError(f"{text}: expected an address without empty parts, '.' and '..' in it")
        return cls(found[1], found[2], "/".join(parts))

    def __str__(self) -> str:
        """The address."""
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> ObjectPath:
        """The address below this one."""
        return ObjectPath(self.scheme, self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        """The last part of the key; empty for a bucket."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return Path(self.name).suffix

    @property
    def parent(self) -> ObjectPath:
        """The address without its last part."""
        return ObjectPath(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def relative_to(self, folder: ObjectPath) -> str:
        """The parts of the key below ``folder``, a bucket or a prefix of this address; empty for ``folder`` itself."""
        return self.key[len(folder.key) :].removeprefix("/")

    def with_name(self, name: str) -> ObjectPath:
        """The address with another last part."""
        return self.parent / name

    def with_suffix(self, suffix: str) -> ObjectPath:
        """The address with another ending."""
        return self.with_name(f"{self.name.removesuffix(self.suffix)}{suffix}")

    def stat(self) -> ObjectStat:
        """Size and ETag of the object.

        Raises:
            ObjectMissingError: there is none.
        """
        return _stat(self._found(lambda api, store: api.head(store, self.key)))

    def exists(self) -> bool:
        """True if there is an object at exactly this address; a prefix of others is none."""
        try:
            self.stat()
        except ObjectMissingError:
            return False
        return True

    def objects(self) -> list[tuple[ObjectPath, ObjectStat]]:
        """All objects below this prefix, at any depth, in order of their keys; empty if there are none."""
        entries: list[Any] = []

        def batch(api: Any, store: Any) -> list[Any]:
            after = entries[-1]["path"] if entries else None
            return next(iter(api.list(store, self.key or None, offset=after, chunk_size=_LISTED)), [])

        while found := self._request(batch):  # each is repeated alone
            entries += found
        return sorted((ObjectPath(self.scheme, self.bucket, entry["path"]), _stat(entry)) for entry in entries)

    def children(self) -> tuple[list[ObjectPath], list[tuple[ObjectPath, ObjectStat]]]:
        """The prefixes (folders) and the objects directly below this prefix, each in order of their keys."""
        found = self._request(lambda api, store: api.list_with_delimiter(store, self.key or None))
        folders = [ObjectPath(self.scheme, self.bucket, prefix.strip("/")) for prefix in found["common_prefixes"]]
        objects = [(ObjectPath(self.scheme, self.bucket, one["path"]), _stat(one)) for one in found["objects"]]
        return sorted(folders), sorted(objects)

    def read(self, stat: ObjectStat | None = None) -> bytes:
        """The whole object; with ``stat``, the one that had that size and ETag.

        Raises:
            ObjectMissingError: there is none.
            ObjectChangedError: it has another ETag now.
        """
        known = stat or self.stat()
        return b"".join(self.read_ranges([(0, known.size)], known.etag))

    def read_range(self, start: int, stop: int, etag: str = "") -> bytes:
        """Exactly the bytes from ``start`` to before ``stop``; with ``etag``, of that version.

        Raises:
            ObjectMissingError: there is no such object.
            ObjectChangedError: it has another ETag now.
            ObjectError: it ends before ``stop``.
        """
        return b"".join(self.read_ranges([(start, stop)], etag))

    def read_ranges(self, ranges: Sequence[Range], etag: str = "", at_once: int = _AT_ONCE) -> list[bytes]:
        """As :meth:`read_range` for several ranges, ``at_once`` at the same time; each is requested as it is."""
        parts = [(number, piece) for number, one in enumerate(ranges) for piece in pieces(*one)]
        if len(parts) == 1:
            bodies = [self._body(parts[0][1], etag)]
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(at_once, len(parts) or 1)) as pool:
                bodies = list(pool.map(lambda part: self._body(part[1], etag), parts))
        found: list[list[bytes]] = [[] for _ in ranges]
        for (number, _), body in zip(parts, bodies, strict=True):
            found[number].append(body)
        return [one[0] if len(one) == 1 else b"".join(one) for one in found]

    def write(self, content: bytes, *, create: bool = False) -> str:
        """Write the object whole, at once; return its ETag.

        Args:
            content: at most 5 GB; see :func:`recipe_core.files.objects.transfers.upload`.
            create: refuse an object that is there, also one that another process writes at the same time.

        Raises:
            ObjectExistsError: with ``create``, there is an object already.
        """
        tries = 0

        def put(api: Any, store: Any) -> Any:
            nonlocal tries
            tries += 1
            mode = "create" if create else "overwrite"
            try:
                return api.put(store, self.key, content, mode=mode, use_multipart=False)
            except api.exceptions.AlreadyExistsError:
                # maybe an earlier try succeeded, and only its answer was lost
                found = api.get(store, self.key) if tries > 1 else None
                if found is None or bytes(found.bytes()) != content:
                    raise
                return found.meta

        return str(self._request(put)["e_tag"])

    def delete(self) -> None:
        """Delete the object; one that is missing is no error."""
        try:
            self._request(lambda api, store: api.delete(store, self.key))
        except ObjectMissingError:
            self._require_bucket()

    def _body(self, piece: Range, etag: str) -> bytes:
        start, stop = piece
        options: dict[str, Any] = {"range": piece, **({"if_match": etag} if etag else {})}

        def get(api: Any, store: Any) -> bytes:
            result = api.get(store, self.key, options=options)
            content, meta = bytes(result.bytes()), result.meta
            if etag and (meta["e_tag"] or etag) != etag:
                raise explained("changed", self.scheme, self.bucket, str(self), ObjectChangedError())
            if len(content) == stop - start:
                return content
            if meta["size"] < stop:
                raise _past_the_end(self, meta["size"], start, stop)
            raise ShortBodyError(f"{len(content):,} of {stop - start:,} bytes")

        return self._found(get)

    def _found(self, request: Callable[[Any, Any], T]) -> T:
        # An answer without a body does not tell a missing bucket from a missing object.
        try:
            return self._request(request)
        except ObjectMissingError:
            self._require_bucket()
            raise

    def _require_bucket(self) -> None:
        self._request(lambda api, store: api.list_with_delimiter(store, self.key))

    def _request(self, request: Callable[[Any, Any], T]) -> T:
        from recipe_core.files.objects.store import client

        store = client(self.scheme, self.bucket)
        import obstore

        return repeated(self, lambda: request(obstore, store))


def _past_the_end(place: ObjectPath, size: int, start: int, stop: int) -> ObjectError:
    return ObjectError(
        f"{place}: it has {size:,} bytes, and those from {start:,} to {stop:,} were asked for; copy the object again"
    )


def _stat(entry: Any) -> ObjectStat:
    return ObjectStat(int(entry["size"]), str(entry["e_tag"] or ""))
