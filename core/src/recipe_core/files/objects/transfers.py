"""Files to objects and back, in parts that fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from recipe_core.files.objects.address import ObjectPath, ObjectStat
from recipe_core.files.objects.failures import explained, kind_of
from recipe_core.files.objects.ranges import pieces

_PART, _MOST_PARTS = 16 << 20, 9_000
"""Bytes of a part of an upload, and the most parts; S3 takes 10,000."""
_AT_ONCE = 4
"""Parts of one file on their way at the same time; each is in memory."""
_AT_A_TIME = 128 << 20
"""Bytes of a download in memory, which several requests fetch at the same time."""


def upload(file: Path, place: ObjectPath, check: Callable[[], object] = bool) -> str:
    """Write the content of a file, a large one in parts of 16 MiB or more; return the object's ETag.

    The object appears when all parts are there; if one fails for good, none is left.

    Args:
        file: to be copied.
        place: of the object.
        check: is called before each part, and may raise to end the upload.

    Raises:
        ObjectError: the storage refuses it, or does not answer within the bounds of all repetitions.
        OSError: ``file`` cannot be read.
    """
    check()
    with file.open("rb") as opened:
        first = opened.read(_PART)
        if len(first) < _PART:
            return place.write(first)
        place.exists()  # a wrong endpoint or bucket is reported within seconds
        part = max(_PART, -(-file.stat().st_size // _MOST_PARTS))
        return _upload_parts(place, part, _parts(first, opened.read, check))


def download(place: ObjectPath, file: Path, stat: ObjectStat) -> None:
    """Write the object of exactly the version ``stat`` into ``file``, whose folder is made.

    Raises:
        ObjectError: it is missing, or has changed.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as target:
        for start, stop in pieces(0, stat.size, _AT_A_TIME):
            for body in place.read_ranges(pieces(start, stop), stat.etag):
                target.write(body)


def _upload_parts(place: ObjectPath, part: int, content: Iterator[bytes]) -> str:
    failed: list[BaseException] = []

    def noting() -> Iterator[bytes]:
        try:
            yield from content
        except BaseException as error:
            failed.append(error)
            raise

    from recipe_core.files.objects.store import client

    store = client(place.scheme, place.bucket, repeats=True)
    import obstore

    try:
        answer = obstore.put(store, place.key, noting(), chunk_size=part, max_concurrency=_AT_ONCE)
    except Exception as error:
        if failed:
            raise failed[0] from None
        raise explained(kind_of(error), place.scheme, place.bucket, str(place), error) from error
    if failed:
        raise failed[0]
    return str(answer["e_tag"])


def _parts(first: bytes, read: Callable[[int], bytes], check: Callable[[], object]) -> Iterator[bytes]:
    piece = first
    while piece:
        check()
        yield piece
        piece = read(_PART)
